"""The LangChain adapters with the real langchain-core over a real memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core._api import LangChainDeprecationWarning
from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.runnables.history import RunnableWithMessageHistory

from calmem import Memory
from calmem.errors import Conflict, Forbidden, InvalidInput, TransientError
from calmem.integrations.langchain import CalmemChatMessageHistory, CalmemRetriever
from calmem.settings import Settings
from tests.support.doors import DOORS, door
from tests.support.rows import rows

CALL = {"name": "look_up", "args": {"order": "SF123456789", "deep": [1, None]}, "id": "call-1", "type": "tool_call"}


def history(memory: Memory, session_id: str = "s1", user_id: str = "ada") -> CalmemChatMessageHistory:
    return CalmemChatMessageHistory(memory, user_id=user_id, session_id=session_id)


@pytest.mark.parametrize("name", [one for one in DOORS if not one.startswith("async")])
def test_messages_come_back_as_they_were(settings: Settings, name: str) -> None:
    said: list[BaseMessage] = [
        SystemMessage("Be brief.", id="a"),
        HumanMessage("Where is my order?", id="b", name="Ada", additional_kwargs={"channel": "mail"}),
        AIMessage("", id="c", tool_calls=[CALL]),
        ToolMessage("damaged", id="d", tool_call_id="call-1", status="error"),
        AIMessage("It was damaged.", id="e"),
    ]
    with door(name, settings) as memory:
        kept = history(memory)
        assert kept.messages == []
        kept.add_messages(said[:2])
        kept.add_messages(said[2:])
        kept.add_messages([])
        assert kept.messages == said
        assert asyncio.run(kept.aget_messages()) == said


def test_a_message_is_kept_once_and_ids_are_a_sessions_own(memory: Memory, settings: Settings) -> None:
    message = HumanMessage("The gate is green.", id="1")
    for session in ("s1", "s1", "s2"):
        history(memory, session).add_message(message)
    history(memory, "b1", user_id="bob").add_message(message)

    assert rows(settings)["messages"] == 3
    with pytest.raises(Conflict):
        history(memory).add_message(HumanMessage("The gate is red.", id="1"))
    with pytest.raises(Forbidden):
        history(memory, user_id="bob").add_message(HumanMessage("Mine now?", id="2"))


def test_parts_are_kept_as_text(memory: Memory) -> None:
    kept = history(memory)
    kept.add_message(
        HumanMessage([{"type": "text", "text": "What is this?"}, {"type": "image", "url": "https://x/y.png"}])
    )
    kept.add_message(AIMessage([{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "A cabin."}]))
    kept.add_message(ChatMessage(content="As I said.", role="user"))

    assert [(one.type, one.content) for one in kept.messages] == [
        ("human", "What is this?\n[image]"),
        ("ai", "A cabin."),
        ("human", "As I said."),
    ]
    for strange in (RemoveMessage(id="1"), ChatMessage(content="hello", role="robot")):
        with pytest.raises(InvalidInput, match="must be a human, AI, tool or system message"):
            kept.add_messages([HumanMessage("fine"), strange])
    assert len(kept.messages) == 3


def test_what_others_recorded_is_read_too_over_pages(memory: Memory) -> None:
    roles = ("user", "assistant", "tool", "system")
    memory.record_many(
        [{"user_id": "ada", "session_id": "s1", "role": roles[n % 4], "content": f"turn {n}"} for n in range(250)]
    )

    found = history(memory).messages

    assert [one.content for one in found] == [f"turn {n}" for n in range(250)]
    assert [one.type for one in found[:4]] == ["human", "ai", "tool", "system"]


def test_clearing_removes_the_session_and_nothing_else(memory: Memory, settings: Settings) -> None:
    history(memory).clear()
    history(memory).add_user_message("The gate is green.")
    history(memory, "s2").add_ai_message("The fence is blue.")
    history(memory).clear()

    assert history(memory).messages == []
    assert [one.content for one in history(memory, "s2").messages] == ["The fence is blue."]
    assert rows(settings)["messages"] == 1


def test_with_memory_off_nothing_is_kept(memory: Memory) -> None:
    memory.put_user("ada", memory="off")
    history(memory).add_user_message("The gate is green.")

    assert history(memory).messages == []


def test_with_memory_away_the_caller_hears_of_it() -> None:
    # An error path: the address is one where nothing listens.
    with Memory(ingest_url="http://127.0.0.1:1", retrieval_url="http://127.0.0.1:1") as memory:
        for call in (
            lambda: history(memory).messages,
            lambda: history(memory).add_user_message("x"),
            history(memory).clear,
        ):
            with pytest.raises(TransientError):
                call()


def test_a_chain_with_history_remembers_its_turns(memory: Memory) -> None:
    seen: list[Any] = []

    class Model(FakeMessagesListChatModel):
        def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Any:
            seen.append([one.content for one in messages])
            return super()._generate(messages, *args, **kwargs)

    def of(session_id: str) -> BaseChatMessageHistory:
        return history(memory, session_id)

    model = Model(responses=[AIMessage("A Vaillant, then."), AIMessage("The Vaillant.")])
    with pytest.warns(LangChainDeprecationWarning):
        chain = RunnableWithMessageHistory(model, of)
    config: Any = {"configurable": {"session_id": "s1"}}
    chain.invoke([HumanMessage("The boiler is a Vaillant.")], config)
    chain.invoke([HumanMessage("Which boiler was it?")], config)

    expected = ["The boiler is a Vaillant.", "A Vaillant, then.", "Which boiler was it?", "The Vaillant."]
    assert seen[1] == expected[:3]
    assert [one.content for one in history(memory).messages] == expected


@pytest.mark.parametrize("name", [one for one in DOORS if not one.startswith("async")])
def test_the_retriever_finds_what_search_finds(settings: Settings, name: str) -> None:
    with door(name, settings) as memory:
        history(memory, "s1").add_messages([HumanMessage("The boiler is a Vaillant.", name="Ada"), AIMessage("Noted.")])
        history(memory, "s2").add_user_message("The boiler was serviced.")
        retriever = CalmemRetriever(memory=memory, user_id="ada")

        found = retriever.invoke("boiler")
        items = memory.search(user_id="ada", query="boiler")
        assert [one.page_content for one in found] == [item.text for item in items]
        assert [one.metadata["score"] for one in found] == [item.score for item in items]
        assert [one.id for one in found] == [f"{item.message_id}:0" for item in items]
        first = next(one for one in found if one.metadata["session_id"] == "s1")
        assert (first.metadata["role"], first.metadata["name"]) == ("user", "Ada")

        narrow = CalmemRetriever(memory=memory, user_id="ada", session_id="s2", k=1)
        assert [one.page_content for one in asyncio.run(narrow.ainvoke("boiler"))] == ["The boiler was serviced."]
        assert CalmemRetriever(memory=memory, user_id="eve").invoke("boiler") == []
