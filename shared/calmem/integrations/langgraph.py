"""LangGraph: nodes that put the block into the state and record the turns. Needs the extra `langgraph`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import structlog
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.runnables import RunnableConfig
from langgraph.graph import MessagesState

from calmem.errors import InvalidInput, TransientError
from calmem.integrations.langchain import recorded_id, turn
from calmem.memory import Memory
from calmem.model import Style

log = structlog.get_logger(__name__)


class MemoryState(MessagesState):
    """`messages`, and the block that was recalled for the last of them; "" when there is nothing to inject."""

    memory_block: str


class MemoryNodes:
    """A user's memory in a graph: `recall` before the model, `record` after it.

    Whose memory it is comes from the run's config: `{"configurable": {"user_id": …, "thread_id": …}}`; the thread is the
    session; raises InvalidInput when one of the two is missing. The state is any with `messages`. In an agent with hooks,
    `pre_model_hook` and `record` are the hooks.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        context_window_capacity: int = 128_000,
        style: Style = "list",
        count_tokens: Callable[[Sequence[AnyMessage]], int] = count_tokens_approximately,
    ) -> None:
        """`context_window_capacity`: the model's, in the tokens that `count_tokens` counts."""
        self._memory = memory
        self._capacity = context_window_capacity
        self._style = style
        self._count_tokens = count_tokens

    def recall(self, state: Any, config: RunnableConfig) -> dict[str, str]:
        """Node: `memory_block` for the last human message, of all that is not in `messages` itself.

        While memory cannot be reached the block is empty and the graph goes on; a log event says so.
        """
        return {"memory_block": self._block(state["messages"], config)}

    def pre_model_hook(self, state: Any, config: RunnableConfig) -> dict[str, list[AnyMessage]]:
        """Hook of an agent: `llm_input_messages`, what the model sees; `messages` stay as they are."""
        messages: list[AnyMessage] = state["messages"]
        return {"llm_input_messages": with_block(messages, self._block(messages, config))}

    def record(self, state: Any, config: RunnableConfig) -> dict[str, Any]:
        """Node or hook: records the turns since the last finished answer, without system messages.

        Safe to run any number of times. Raises TransientError while memory cannot be reached, so that no turn is
        lost unnoticed: give the node a retry policy.
        """
        user_id, session_id = _whose(config)
        turns = [
            turn(message, user_id=user_id, session_id=session_id)
            for message in last_exchange(state["messages"])
            if not isinstance(message, SystemMessage)
        ]
        if any(one["message_id"] is None for one in turns):
            raise InvalidInput("messages", "must have ids, as the reducer add_messages of MessagesState gives them")
        if turns:
            self._memory.record_many(turns)
        return {}

    def _block(self, messages: Sequence[AnyMessage], config: RunnableConfig) -> str:
        user_id, session_id = _whose(config)
        asked = next((message for message in reversed(messages) if isinstance(message, HumanMessage)), None)
        # Those recorded from here, and those that were read from calmem and have its own ids.
        ids = [one.id for one in messages if one.id]
        active = [*ids, *(recorded_id(one, user_id=user_id, session_id=session_id) for one in ids)]
        try:
            return self._memory.recall(
                user_id=user_id,
                session_id=session_id,
                query="" if asked is None else str(asked.text),
                current_tokens=self._count_tokens(messages),
                context_window_capacity=self._capacity,
                active_message_ids=active,
                style=self._style,
            ).block
        except TransientError as exc:
            log.warning("recall_skipped", error=str(exc))
            return ""


def with_block(messages: Sequence[AnyMessage], block: str) -> list[AnyMessage]:
    """The messages with the block at the end of the system message, or as one where there is none."""
    if not block:
        return list(messages)
    if messages and isinstance(messages[0], SystemMessage):
        system = SystemMessage(content=f"{messages[0].text}\n\n{block}", id=messages[0].id)
        return [system, *messages[1:]]
    return [SystemMessage(content=block), *messages]


def last_exchange(messages: Sequence[AnyMessage]) -> Sequence[AnyMessage]:
    """From behind the last answer that was followed by a human message, to the end."""
    start = next((place for place in range(len(messages) - 1, -1, -1) if isinstance(messages[place], HumanMessage)), 0)
    while start > 0 and not _finished(messages[start - 1]):
        start -= 1
    return messages[start:]


def _finished(message: AnyMessage) -> bool:
    return isinstance(message, AIMessage) and not message.tool_calls


def _whose(config: RunnableConfig) -> tuple[str, str]:
    configurable = config.get("configurable", {})
    for name in ("user_id", "thread_id"):
        if not isinstance(configurable.get(name), str):
            raise InvalidInput(f"configurable.{name}", 'is missing: {"configurable": {"user_id": …, "thread_id": …}}')
    return configurable["user_id"], configurable["thread_id"]
