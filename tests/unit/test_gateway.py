"""What the gateway decides without any server: the window, ids, the prompt, and reading answers."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calmem import budget
from calmem_services.gateway.answers import read_answer
from calmem_services.gateway.conversation import Conversation, answer_turn, read
from calmem_services.gateway.prompt import SUMMARY_FRAME, encode, extract, frame_summary, rewrite
from calmem_services.gateway.window import Limits, compact
from tests.support.gateway import assistant, system, user
from tests.support.upstream import streamed

LIMITS = Limits(capacity=1_000, compact_at=0.8, compact_to=0.5, summary_tokens=100)
# 4 tokens frame a message, so each of these takes 100.
HUNDRED = "x" * 384


def conversation(messages: list[Any], **body: Any) -> Conversation:
    return read({"messages": messages, **body}, user_id="ada", session_id="s1")


def exchanges(count: int) -> list[Any]:
    """Each of 200 tokens."""
    return [one for _ in range(count) for one in (user(HUNDRED), assistant(HUNDRED))]


def places(turns: Any) -> list[int]:
    return [turn.place for turn in turns]


def test_below_the_mark_everything_stays() -> None:
    # 3 exchanges and a question: 700 of 1,000.
    window = compact(conversation([*exchanges(3), user(HUNDRED)]), LIMITS)
    assert window.tokens == 700
    assert window.dropped == []


def test_at_the_mark_the_oldest_exchanges_leave_until_half_is_free() -> None:
    # System 100 and 3 exchanges and a question: exactly 800. With 100 for the summary, 2 exchanges have to leave.
    messages = [system(HUNDRED), *exchanges(3), user(HUNDRED)]
    window = compact(conversation(messages), LIMITS)
    assert places(window.dropped) == [1, 2, 3, 4]
    assert places(window.kept) == [0, 5, 6, 7]
    assert window.tokens == 400
    # One token less, and nothing leaves.
    messages[0] = system("x" * 380)
    assert compact(conversation(messages), LIMITS).dropped == []


def test_the_beginning_stays_the_same_until_the_next_compaction() -> None:
    beginnings = []
    for count in range(3, 12):
        window = compact(conversation([system(HUNDRED), *exchanges(count), user(HUNDRED)]), LIMITS)
        assert window.tokens < 800
        beginnings.append(window.kept[1].place)
    # From 400 with 100 kept free it takes two more exchanges to reach 900 of 1,000: over the mark again.
    assert beginnings == [5, 5, 9, 9, 13, 13, 17, 17, 21]


def test_tool_calls_leave_with_their_results() -> None:
    calls = [{"id": "c1", "function": {"name": "f", "arguments": "{}"}}]
    tool = {"role": "tool", "tool_call_id": "c1", "content": HUNDRED}
    old = [user(HUNDRED), assistant(None, tool_calls=calls), tool, assistant(HUNDRED)]
    window = compact(conversation([*old, *exchanges(2), user(HUNDRED)]), LIMITS)
    assert places(window.dropped) == [0, 1, 2, 3, 4, 5]


def test_a_running_exchange_too_long_sheds_its_oldest_rounds() -> None:
    rounds = [
        one
        for number in range(6)
        for one in (
            assistant(HUNDRED, tool_calls=[{"id": f"c{number}"}]),
            {"role": "tool", "tool_call_id": f"c{number}", "content": HUNDRED},
        )
    ]
    window = compact(conversation([user("Go on."), *rounds]), LIMITS)
    assert window.kept[0].place == 0
    roles = [turn.role for turn in window.kept[1:]]
    assert roles == ["assistant", "tool"] * (len(roles) // 2)
    assert window.kept[-1].place == 12
    assert window.tokens < 800
    assert len(window.dropped) + len(window.kept) == 13


def test_system_messages_and_the_running_question_never_leave() -> None:
    messages = [system(HUNDRED), *exchanges(4), system("Speak French now."), *exchanges(3), user("x" * 4_000)]
    window = compact(conversation(messages), LIMITS)
    assert [turn.role for turn in window.kept] == ["system", "system", "user"]


@given(
    st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool", "system"]), st.integers(0, 1_500)), min_size=1),
    st.integers(0, 700),
)
def test_the_window_holds_for_any_conversation(said: list[tuple[str, int]], tools: int) -> None:
    talk = conversation([{"role": role, "content": "y" * length} for role, length in said], tools=["z" * tools])
    window = compact(talk, LIMITS)
    assert sorted(places([*window.kept, *window.dropped])) == list(range(len(said)))
    assert not [turn for turn in window.dropped if turn.role == "system"]
    assert window.tokens == talk.fixed_tokens + sum(turn.tokens for turn in window.kept)
    spoken = [turn for turn in window.kept if turn.role != "system"]
    reserved = LIMITS.summary_tokens if window.dropped else 0
    if window.tokens + reserved >= 800 and spoken and spoken[-1].role != "assistant":
        # Only what may never leave is left: the running exchange, of at most one round after the user's words.
        roles = "".join(turn.role[0] for turn in spoken)
        assert re.fullmatch("(u+t*|t*)(at*)?", roles), roles


def test_tokens_of_a_message() -> None:
    [turn] = conversation([user("x" * 40)]).turns
    assert turn.tokens == 14
    [turn] = conversation([user("你好吗")]).turns
    assert turn.tokens == 7
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    [turn] = conversation([user([{"type": "text", "text": "x" * 40}, image])]).turns
    assert turn.tokens == 814
    assert conversation([user("")], tools=[{"a": 1}]).fixed_tokens == budget.tokens('[{"a":1}]')


def ids(messages: list[Any], *, who: str = "ada", session: str = "s1") -> list[str]:
    talk = read({"messages": messages}, user_id=who, session_id=session)
    return [turn.message_id for turn in talk.turns]


def test_ids_are_the_same_for_the_same_turn_and_no_other() -> None:
    messages = [user("Hello."), assistant("Hi."), user("ok"), assistant("Hi."), user("ok")]
    known = ids(messages)
    assert len(set(known)) == 5
    assert ids(messages[:3]) == known[:3]
    assert ids([system("Changed."), *messages])[1:] == known
    assert ids([system("Changed.")]) == [""]
    assert not set(known) & set(ids(messages, session="s2"))
    assert not set(known) & set(ids(messages, who="bob"))
    talk = read({"messages": messages[:3]}, user_id="ada", session_id="s1")
    assert answer_turn(talk, {"content": "Hi."}).message_id == known[3]
    assert answer_turn(talk, {"content": " Hi.\n"}).message_id == known[3]


def test_the_prompt_is_changed_where_it_must_be_and_nowhere_else() -> None:
    messages = [system("A"), user("1"), assistant("2"), user("3"), assistant("4"), user("5")]
    body = {"model": "m", "messages": messages, "logit_bias": {"5": 1.5}, "x": None}
    new = rewrite(body, dropped={1, 2}, summary="S", block="B", place="before_last_user")
    assert new["messages"] == [system("A\n\nS"), user("3"), assistant("4"), system("B"), user("5")]
    assert {**new, "messages": messages} == body
    new = rewrite(body, dropped=(), summary="", block="B", place="system")
    assert new["messages"] == [system("A\n\nB"), *messages[1:]]
    assert messages[0] == system("A")


def test_the_body_is_written_as_json_whatever_text_it_has() -> None:
    body = {"messages": [user("Grüß \ud800 你好 \x00")], "n": 0.1, "big": 2**70}
    assert json.loads(encode(body)) == body


def test_the_extract_has_the_newest_first_sentences_that_fit() -> None:
    said = [f"Fact number {number} is here. The rest is chatter." for number in range(50)]
    turns = conversation([one for text in said for one in (user(text), assistant("Noted."))]).turns
    extracted = extract(turns, 100)
    lines = extracted.splitlines()
    assert lines[-1] == "- user: Fact number 49 is here."
    assert lines == [f"- user: Fact number {number} is here." for number in range(50 - len(lines), 50)]
    framed = frame_summary(extracted, 100)
    assert framed == f"{SUMMARY_FRAME}\n{extracted}"
    assert budget.tokens(framed) <= 100
    # The next line would have been one too many.
    assert budget.tokens(f"{framed}\n- user: Fact number 10 is here.") > 100


def test_a_summary_is_cut_to_its_room_and_cannot_open_a_block() -> None:
    framed = frame_summary("</moim> " + "long " * 500, 100)
    assert budget.tokens(framed) <= 100
    assert "</moim>" not in framed
    assert frame_summary("  ", 100) == ""


def events(*deltas: dict[str, Any], finish: str | None = "stop") -> bytes:
    return b"".join(streamed(deltas, finish=finish).pieces)


def from_events(raw: bytes) -> Any:
    return read_answer(raw, content_type="text/event-stream; charset=utf-8", content_encoding="")


def test_an_answer_in_events() -> None:
    said = from_events(events({"role": "assistant"}, {"content": "Grüß "}, {"content": "dich"}))
    assert said["content"] == "Grüß dich"
    windows = events({"content": "a"}, {"content": "b"}).replace(b"\n", b"\r\n")
    assert from_events(windows)["content"] == "ab"
    # usage comes in an event without choices
    with_usage = events({"content": "a"}).replace(
        b"data: [DONE]", b'data: {"choices": [], "usage": {}}\n\ndata: [DONE]'
    )
    assert from_events(with_usage)["content"] == "a"
    assert from_events(events({"refusal": "No."}))["refusal"] == "No."


def test_two_tool_calls_in_events() -> None:
    first = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
    second = {"index": 1, "id": "c2", "type": "function", "function": {"name": "g", "arguments": "{"}}
    said = from_events(
        events(
            {"tool_calls": [first]},
            {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":1}'}}]},
            {"tool_calls": [second]},
            {"tool_calls": [{"index": 1, "function": {"arguments": "}"}}]},
            finish="tool_calls",
        )
    )
    assert said["content"] is None
    assert [(call["id"], call["function"]) for call in said["tool_calls"]] == [
        ("c1", {"name": "f", "arguments": '{"a":1}'}),
        ("c2", {"name": "g", "arguments": "{}"}),
    ]


@pytest.mark.parametrize(
    "raw",
    [
        events({"content": "cut"}, finish=None),
        b"data: {not json}\n\n",
        b"data: 5\n\n",
        b'data: {"choices": [{"index": 1, "delta": {}, "finish_reason": "stop"}]}\n\n',
        b"",
    ],
)
def test_events_that_are_no_whole_answer(raw: bytes) -> None:
    assert from_events(raw) is None


@pytest.mark.parametrize(
    ("raw", "encoding"),
    [
        (b"", ""),
        (b"[]", ""),
        (b'{"choices": []}', ""),
        (b'{"choices": [{}, {}]}', ""),
        (b'{"choices": [{"message": "x"}]}', ""),
        (b"{", ""),
        (b'{"choices": [{"message": {"content": "x"}}]}', "br"),
        (b'{"choices": [{"message": {"content": "x"}}]}', "gzip"),
    ],
)
def test_json_that_is_no_answer(raw: bytes, encoding: str) -> None:
    assert read_answer(raw, content_type="application/json", content_encoding=encoding) is None
