"""The LangGraph nodes in real graphs, with a scripted model, over a real memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import create_react_agent
from langgraph.types import RetryPolicy
from langgraph.warnings import LangGraphDeprecatedSinceV10
from pydantic import Field

from calmem import Memory
from calmem.errors import InvalidInput, TransientError
from calmem.integrations.langgraph import MemoryNodes, MemoryState, last_exchange, with_block
from calmem.settings import Settings
from calmem.text import OPEN_MARK
from tests.support.rows import rows


class ScriptedModel(FakeMessagesListChatModel):
    """Answers in turn, and keeps what it was shown."""

    shown: list[list[BaseMessage]] = Field(default_factory=list)

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Any:
        self.shown.append(messages)
        return super()._generate(messages, *args, **kwargs)

    def bind_tools(self, *_args: Any, **_kwargs: Any) -> Any:
        return self


def answers(*texts: str | AIMessage) -> ScriptedModel:
    return ScriptedModel(responses=[AIMessage(one) if isinstance(one, str) else one for one in texts])


def run_of(thread: str, user: str = "ada") -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "user_id": user}}


def graph(memory: Memory, model: ScriptedModel, **options: Any) -> Any:
    nodes = MemoryNodes(memory, **options)

    def answer(state: MemoryState) -> dict[str, Any]:
        return {"messages": [model.invoke(with_block(state["messages"], state["memory_block"]))]}

    built = StateGraph(MemoryState)
    built.add_node("recall", nodes.recall)
    built.add_node("answer", answer)
    built.add_node("record", nodes.record, retry_policy=RetryPolicy(retry_on=TransientError, initial_interval=0.01))
    built.add_edge(START, "recall")
    built.add_edge("recall", "answer")
    built.add_edge("answer", "record")
    built.add_edge("record", END)
    return built.compile(checkpointer=InMemorySaver())


def say(app: Any, text: str, config: RunnableConfig) -> Any:
    return app.invoke({"messages": [HumanMessage(text)]}, config)


def contents(memory: Memory, session: str) -> list[tuple[str, str]]:
    return [(one.role, one.content) for one in memory.messages("ada", session)[0]]


def test_a_graph_remembers_in_another_thread_what_was_said_in_one(memory: Memory) -> None:
    model = answers("A Vaillant, then.", "Fine.", "The Vaillant.")
    app = graph(memory, model)

    first = say(app, "The boiler of the cabin is a Vaillant.", run_of("one"))
    say(app, "And the fence is blue.", run_of("one"))
    later = say(app, "Which boiler does the cabin have?", run_of("two"))

    assert first["memory_block"].count("Vaillant") == 0
    assert contents(memory, "one") == [
        ("user", "The boiler of the cabin is a Vaillant."),
        ("assistant", "A Vaillant, then."),
        ("user", "And the fence is blue."),
        ("assistant", "Fine."),
    ]
    assert OPEN_MARK in later["memory_block"]
    system, asked = model.shown[2]
    assert isinstance(system, SystemMessage)
    assert "The boiler of the cabin is a Vaillant." in str(system.content)
    assert asked.content == "Which boiler does the cabin have?"
    assert [one.type for one in later["messages"]] == ["human", "ai"], "the block is no message of the conversation"


def test_what_the_model_sees_anyway_is_not_recalled(memory: Memory) -> None:
    model = answers("Noted.", "The Vaillant.")
    app = graph(memory, model)
    say(app, "The boiler of the cabin is a Vaillant.", run_of("one"))

    again = say(app, "Which boiler does the cabin have?", run_of("one"))

    assert "Vaillant" not in again["memory_block"]


def test_users_are_kept_apart_and_both_ids_are_needed(memory: Memory) -> None:
    app = graph(memory, answers("Noted.", "No idea."))
    say(app, "The boiler of the cabin is a Vaillant.", run_of("one"))

    assert "Vaillant" not in say(app, "Which boiler does the cabin have?", run_of("e1", user="eve"))["memory_block"]
    with pytest.raises(InvalidInput, match=r"configurable\.user_id"):
        say(app, "Hello?", {"configurable": {"thread_id": "x"}})


def test_the_budget_follows_the_context(memory: Memory) -> None:
    memory.record(user_id="ada", session_id="old", role="user", content="The boiler of the cabin is a Vaillant.")
    memory.remember_fact(user_id="ada", session_id="now", key="diet", value="no walnuts")
    full = MemoryNodes(memory, context_window_capacity=10_000)
    tight = MemoryNodes(memory, context_window_capacity=100, count_tokens=lambda _messages: 90)
    state: MemoryState = {"messages": [HumanMessage("Which boiler does the cabin have?", id="1")], "memory_block": ""}

    assert "Vaillant" in full.recall(state, run_of("now"))["memory_block"]
    block = tight.recall(state, run_of("now"))["memory_block"]
    assert "no walnuts" in block
    assert "Vaillant" not in block


def test_an_agent_with_hooks_records_its_tool_calls_once(memory: Memory, settings: Settings) -> None:
    @tool
    def look_up(order: str) -> str:
        """Look an order up."""
        return f"{order} was damaged"

    memory.record(user_id="ada", session_id="old", role="user", content="My order SF123456789 is for the cabin.")
    call = {"name": "look_up", "args": {"order": "SF123456789"}, "id": "c1", "type": "tool_call"}
    model = answers(AIMessage("", tool_calls=[call]), "It was damaged.")
    nodes = MemoryNodes(memory)
    with pytest.warns(LangGraphDeprecatedSinceV10):
        agent = create_react_agent(
            model, [look_up], pre_model_hook=nodes.pre_model_hook, post_model_hook=nodes.record, prompt="Be brief."
        )

    done = say(agent, "What happened to SF123456789?", run_of("now"))

    assert contents(memory, "now") == [
        ("user", "What happened to SF123456789?"),
        ("assistant", ""),
        ("tool", "SF123456789 was damaged"),
        ("assistant", "It was damaged."),
    ]
    assert all("for the cabin" in str(shown) for shown in model.shown)
    assert not any(OPEN_MARK in str(one.content) for one in done["messages"])
    before = rows(settings)
    nodes.record(done, run_of("now"))
    assert rows(settings) == before


def test_the_async_way_through_a_graph(memory: Memory) -> None:
    app = graph(memory, answers("Noted."))

    asyncio.run(app.ainvoke({"messages": [HumanMessage("The gate is green.")]}, run_of("one")))

    assert contents(memory, "one") == [("user", "The gate is green."), ("assistant", "Noted.")]


def test_with_memory_away_the_model_answers_and_the_loss_is_heard_of() -> None:
    # An error path: the address is one where nothing listens.
    model = answers("Hello.")
    with Memory(ingest_url="http://127.0.0.1:1", retrieval_url="http://127.0.0.1:1") as memory:
        app = graph(memory, model)
        with pytest.raises(TransientError):
            say(app, "Hello?", run_of("one"))
    assert [one.content for one in model.shown[0]] == ["Hello?"]
    assert app.get_state(run_of("one")).next == ("record",), "the run can be taken up again where it stopped"


def test_messages_without_ids_are_refused(memory: Memory) -> None:
    with pytest.raises(InvalidInput, match="messages"):
        MemoryNodes(memory).record({"messages": [HumanMessage("hello")]}, run_of("one"))


def test_the_last_exchange_begins_behind_the_last_finished_answer() -> None:
    call = {"name": "f", "args": {}, "id": "c", "type": "tool_call"}
    start: list[AnyMessage] = [SystemMessage("s"), HumanMessage("1")]
    middle: list[AnyMessage] = [AIMessage("2"), HumanMessage("3"), HumanMessage("4")]
    end: list[AnyMessage] = [AIMessage("", tool_calls=[call]), ToolMessage("5", tool_call_id="c"), AIMessage("6")]

    assert last_exchange([]) == []
    assert last_exchange(start) == start
    assert last_exchange(start + middle) == middle[1:]
    assert last_exchange(start + middle + end) == middle[1:] + end
    assert last_exchange([AIMessage("Hello, I am here.")]) == [AIMessage("Hello, I am here.")]


def test_the_block_joins_the_system_message() -> None:
    asked = HumanMessage("hello")

    assert with_block([asked], "") == [asked]
    assert with_block([asked], "BLOCK") == [SystemMessage("BLOCK"), asked]
    assert with_block([SystemMessage("Be brief.", id="s"), asked], "BLOCK") == [
        SystemMessage("Be brief.\n\nBLOCK", id="s"),
        asked,
    ]
