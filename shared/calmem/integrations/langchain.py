"""LangChain: a chat history and a retriever over a user's memory. Needs the extra `langchain`."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.retrievers import BaseRetriever

from calmem import paging
from calmem.errors import InvalidInput, NotFound
from calmem.memory import Memory
from calmem.model import ROLES, Message, Role

_ROLES: tuple[tuple[type[BaseMessage], Role], ...] = (
    (HumanMessage, "user"),
    (AIMessage, "assistant"),
    (ToolMessage, "tool"),
    (FunctionMessage, "tool"),
    (SystemMessage, "system"),
)
# What a message is besides its text, kept in calmem's metadata under this name.
_KEPT = "langchain"
_PARTS = ("id", "tool_calls", "invalid_tool_calls", "tool_call_id", "status", "additional_kwargs")
_NAMESPACE = uuid.UUID("6f0e6a52-5f0c-4cf1-9d5a-2c8f1a1b7a44")


class CalmemChatMessageHistory(BaseChatMessageHistory):
    """The messages of one session, kept in calmem and so found again by `recall` in any other session.

    Text, name, id, tool calls and `additional_kwargs` come back as they were. Of a list of parts the text comes back;
    an image becomes `[image]`. With the user's memory off nothing is kept and the history is empty. Errors are those of `Memory`.
    """

    def __init__(self, memory: Memory, *, user_id: str, session_id: str) -> None:
        super().__init__()
        self._memory = memory
        self._user_id = user_id
        self._session_id = session_id

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]  # LangChain declares an attribute, and says a property will do
        """All of the session, in order."""
        try:
            found = paging.collect(lambda at: self._memory.messages(self._user_id, self._session_id, cursor=at))
        except NotFound:
            return []  # nothing was said yet
        return [read_message(message) for message in found]

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Record them, all or none. One whose `id` was recorded in this session before is not recorded again."""
        if messages:
            self._memory.record_many(
                [turn(message, user_id=self._user_id, session_id=self._session_id) for message in messages]
            )

    def clear(self) -> None:
        """Delete the session from memory, with its facts and everything derived."""
        try:
            self._memory.delete_session(self._user_id, self._session_id)
        except NotFound:
            return


class CalmemRetriever(BaseRetriever):
    """What a user said and was told before, as documents, best first; see `Memory.search`.

    `session_id`: only in this session. A document's metadata has `message_id`, `session_id`, `role`, `name`, `created_at`
    (ISO 8601), `score` and `reasons`.
    """

    memory: Memory
    user_id: str
    session_id: str | None = None
    k: int = 10

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        items = self.memory.search(user_id=self.user_id, query=query, k=self.k, session_id=self.session_id)
        return [
            Document(
                id=f"{item.message_id}:{item.start}",
                page_content=item.text,
                metadata={
                    "message_id": item.message_id,
                    "session_id": item.session_id,
                    "role": item.role,
                    "name": item.name,
                    "created_at": item.created_at.isoformat(),
                    "score": item.score,
                    "reasons": list(item.reasons),
                },
            )
            for item in items
        ]


def turn(message: BaseMessage, *, user_id: str, session_id: str) -> dict[str, Any]:
    """The fields of `Memory.record` for a message. Raises InvalidInput for a kind that is no turn."""
    kept = {name: getattr(message, name, None) for name in _PARTS}
    return {
        "user_id": user_id,
        "session_id": session_id,
        "role": _role(message),
        "name": message.name,
        # Of a model's answer the text alone: its other parts are the tool calls again, or its thinking.
        "content": str(message.text) if isinstance(message, AIMessage) else message.content,
        "message_id": None if message.id is None else recorded_id(message.id, user_id=user_id, session_id=session_id),
        "metadata": {_KEPT: {name: value for name, value in kept.items() if value}},
    }


def recorded_id(message_id: str, *, user_id: str, session_id: str) -> str:
    """calmem's id of a message that has this id in LangChain, where ids need be unique in their session only."""
    return str(uuid.uuid5(_NAMESPACE, json.dumps([user_id, session_id, message_id])))


def read_message(stored: Message) -> BaseMessage:
    """The message again; one that something else recorded has calmem's id and no more than text and name."""
    kept = dict(stored.metadata.get(_KEPT, {}))
    fields = {"id": stored.message_id, **kept, "name": stored.name, "content": stored.content}
    if stored.role == "tool":
        return ToolMessage(**{"tool_call_id": "", **fields})
    kinds: dict[str, Callable[..., BaseMessage]] = {
        "user": HumanMessage,
        "assistant": AIMessage,
        "system": SystemMessage,
    }
    return kinds[stored.role](**fields)


def _role(message: BaseMessage) -> Role:
    for kind, role in _ROLES:
        if isinstance(message, kind):
            return role
    if isinstance(message, ChatMessage):
        for role in ROLES:
            if message.role == role:
                return role
    raise InvalidInput("message", f"must be a human, AI, tool or system message, not {message.type}")
