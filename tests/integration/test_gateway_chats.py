"""The gateway with the official client: what the upstream is asked, what the client gets, what is kept."""

from __future__ import annotations

import base64
import gzip
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import openai
import pytest

from calmem.memory import Memory
from calmem.settings import Settings
from tests.support.gateway import Gated, assistant, gated, system, user
from tests.support.processes import eventually
from tests.support.upstream import EVENTS, Answer, is_summary, said, streamed, words

BLOCK = '<moim source="calmem" version="1">'
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "stock", "parameters": {"type": "object", "properties": {"part": {"type": "string"}}}},
    }
]
CALL: dict[str, Any] = {
    "id": "call_7",
    "type": "function",
    "function": {"name": "stock", "arguments": '{"part":"valve 12"}'},
}


@pytest.fixture
def gate(settings: Settings) -> Iterator[Gated]:
    with gated(settings) as opened:
        yield opened


def test_a_turn_is_recorded_and_comes_back_in_another_session(gate: Gated) -> None:
    gate.upstream.answer = lambda _asked: said("Good choice.")
    messages = [system("You run a shop."), user("We decided on SQLite for the stock.")]
    assert gate.chat(messages) == "Good choice."
    gate.until_rows([("s1", "user", "We decided on SQLite for the stock."), ("s1", "assistant", "Good choice.")])

    asked = [system("You run a shop."), user("Which database did we choose for the stock?")]
    gate.chat(asked, session="s2", temperature=0.25, seed=7)
    body = gate.upstream.last.body
    prompt = body["messages"][0]["content"]
    assert prompt.startswith(f"You run a shop.\n\n{BLOCK}")
    assert "user: We decided on SQLite for the stock." in prompt
    assert body["messages"][1:] == asked[1:]
    assert {name: body[name] for name in body if name != "messages"} == {
        "model": "scripted",
        "temperature": 0.25,
        "seed": 7,
    }


def test_what_the_model_can_still_see_is_not_recalled(gate: Gated) -> None:
    first = user("The boiler is a Vaillant ecoTEC from 2019.")
    gate.chat([first])
    gate.until_rows([("s1", "user", str(first["content"])), ("s1", "assistant", "Noted.")])
    gate.chat([first, assistant("Noted."), user("What is the boiler again?")])
    assert gate.upstream.last.prompt.count("ecoTEC") == 1
    assert gate.memory()["injected"] >= 1


@pytest.mark.parametrize("place", ["system", "before_last_user"])
def test_where_the_block_goes(settings: Settings, place: str) -> None:
    with gated(settings, gateway_inject=place) as gate:
        gate.chat([user("My passport number is L01X00T47.")], session="old")
        gate.until_rows([("old", "user", "My passport number is L01X00T47."), ("old", "assistant", "Noted.")])
        said_before = [system("Be brief."), user("Hello."), assistant("Hello!")]
        result = {"role": "tool", "tool_call_id": "call_7", "content": "none left"}
        calling = assistant(None, tool_calls=[CALL])
        gate.chat([*said_before, user("What is my passport number?"), calling, result], tools=TOOLS)
    sent = gate.upstream.last.body["messages"]
    roles = [message["role"] for message in sent]
    if place == "system":
        assert roles == ["system", "user", "assistant", "user", "assistant", "tool"]
        assert "L01X00T47" in sent[0]["content"]
        assert sent[1:3] == said_before[1:]
    else:
        assert roles == ["system", "user", "assistant", "system", "user", "assistant", "tool"]
        assert "L01X00T47" in sent[3]["content"]
        assert sent[:3] == said_before
    assert sent[-2:] == [calling, result]


def test_the_system_prompt_may_be_missing_or_come_in_parts(gate: Gated) -> None:
    gate.chat([user("Hello.")], user="newcomer")
    first = gate.upstream.last.body["messages"]
    assert [message["role"] for message in first] == ["system", "user"]
    assert first[0]["content"].startswith(BLOCK)

    parts = {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}
    gate.chat([parts, user("Hello.")], user="stranger", session="s9")
    sent = gate.upstream.last.body["messages"]
    assert sent[0]["role"] == "developer"
    assert sent[0]["content"][0] == parts["content"][0]
    assert sent[0]["content"][1]["text"].startswith(BLOCK)


def test_a_stream_reaches_the_client_as_it_comes_and_is_recorded(gate: Gated) -> None:
    seen = threading.Event()
    answer = words("The answer comes word by word.")
    gate.upstream.answer = lambda _asked: replace(answer, wait=lambda: seen.wait(30) or pytest.fail("held back"))
    with gate.openai() as opened:
        stream = opened.chat.completions.create(model="scripted", messages=[user("Stream it.")], stream=True)
        pieces = []
        for chunk in stream:
            seen.set()  # the upstream goes on only when the first piece has arrived here
            pieces += [choice.delta.content or "" for choice in chunk.choices]
    assert "".join(pieces) == "The answer comes word by word. "
    gate.until_rows([("s1", "user", "Stream it."), ("s1", "assistant", "The answer comes word by word.")])


def test_the_bytes_of_a_stream_are_the_upstreams(gate: Gated) -> None:
    pieces = [b": comment\r\n\r\n", *words("Grüß dich, 你好!").pieces, b"event: odd\ndata: 1\n\n"]
    gate.upstream.answer = lambda _asked: Answer(content_type=EVENTS, pieces=pieces, headers={"x-request-id": "r1"})
    answer = gate.http.post(
        "/v1/chat/completions",
        json={"model": "m", "stream": True, "user": "ada", "messages": [user("Hello.")]},
    )
    assert answer.content == b"".join(pieces)
    assert answer.headers["content-type"] == EVENTS
    assert answer.headers["x-request-id"] == "r1"


def test_tool_calls_pass_and_are_kept_with_their_results(gate: Gated) -> None:
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "tool_calls": [{**CALL, "index": 0, "function": {"name": "stock", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"part":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"valve 12"}'}}]},
    ]
    gate.upstream.answer = lambda _asked: streamed(deltas, finish="tool_calls")
    asked = user("How many of valve 12 are left?")
    arguments = ""
    with gate.openai() as opened:
        for chunk in opened.chat.completions.create(
            model="scripted", messages=[asked], tools=TOOLS, tool_choice="auto", stream=True
        ):
            for call in chunk.choices[0].delta.tool_calls or []:
                assert call.function is not None
                arguments += call.function.arguments or ""
    assert arguments == CALL["function"]["arguments"]
    assert gate.upstream.last.body["tools"] == TOOLS
    assert gate.upstream.last.body["tool_choice"] == "auto"
    expected = [("s1", "user", "How many of valve 12 are left?"), ("s1", "assistant", "")]
    gate.until_rows(expected)

    gate.upstream.answer = lambda _asked: said("Three.")
    result = {"role": "tool", "tool_call_id": "call_7", "content": '{"left": 3}'}
    # Clients write the arguments as they like; the call is the same.
    again = {**CALL, "function": {"name": "stock", "arguments": '{"part": "valve 12"}'}}
    gate.chat([asked, assistant(None, tool_calls=[again]), result], tools=TOOLS)
    assert gate.upstream.last.body["messages"][-2:] == [assistant(None, tool_calls=[again]), result]
    gate.until_rows([*expected, ("s1", "tool", '{"left": 3}'), ("s1", "assistant", "Three.")])
    with Memory(settings=gate.settings) as memory:
        stored = memory.messages("ada", "s1")[0]
    calls: Any = stored[1].metadata["tool_calls"]
    assert calls[0]["function"] == CALL["function"]
    assert stored[2].metadata == {"tool_call_id": "call_7"}


def test_an_image_passes_unchanged_and_counts_as_an_image(gate: Gated) -> None:
    pixels = "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 200).decode()
    image = {"type": "image_url", "image_url": {"url": pixels, "detail": "low"}}
    message = user([{"type": "text", "text": "What is on this picture?"}, image])
    gate.chat([message])
    assert gate.upstream.last.body["messages"][-1] == message
    gate.until_rows([("s1", "user", "What is on this picture?\n[image]"), ("s1", "assistant", "Noted.")])


def test_retries_and_replays_are_recorded_once(gate: Gated) -> None:
    said_so_far: list[dict[str, Any]] = []
    expected = []
    for text in ("Water the ferns.", "ok", "Feed the cat.", "ok"):
        said_so_far.append(user(text))
        threads = [threading.Thread(target=gate.chat, args=[[*said_so_far]]) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        said_so_far.append(assistant("Noted."))
        expected += [("s1", "user", text), ("s1", "assistant", "Noted.")]
        gate.until_rows(expected)


def test_a_host_that_sends_only_its_last_messages_makes_no_doubles(gate: Gated) -> None:
    told = [f"Parcel {number} goes to house {number * 3}." for number in range(6)]
    whole: list[dict[str, Any]] = []
    expected = []
    for number, text in enumerate(told):
        answer = f"Parcel {number} is noted."
        gate.upstream.answer = lambda _asked, answer=answer: said(answer)  # type: ignore[misc]
        whole.append(user(text))
        gate.chat(whole[-3:])
        whole.append(assistant(answer))
        expected += [("s1", "user", text), ("s1", "assistant", answer)]
        gate.until_rows(expected)


def test_another_process_goes_on_without_doubles_and_takes_up_what_it_missed(settings: Settings) -> None:
    messages = [user("The key is under the third pot."), assistant("Understood."), user("And the spare one?")]
    with gated(settings) as gate:
        gate.upstream.answer = lambda _asked: said("Understood.")
        gate.chat(messages[:1])
        expected = [("s1", "user", "The key is under the third pot."), ("s1", "assistant", "Understood.")]
        gate.until_rows(expected)
    with gated(settings) as gate:
        gate.chat([*messages, assistant("Said elsewhere."), user("Thanks.")])
        more = [("user", "And the spare one?"), ("assistant", "Said elsewhere."), ("user", "Thanks.")]
        gate.until_rows([*expected, *[("s1", *one) for one in more], ("s1", "assistant", "Noted.")])


def test_an_answer_that_breaks_off_is_not_recorded_and_not_made_whole(gate: Gated) -> None:
    answer = streamed([{"role": "assistant", "content": "It is in the"}], finish=None)
    gate.upstream.answer = lambda _asked: replace(answer, break_off=True)
    got = ""
    with gate.openai() as opened:
        stream = opened.chat.completions.create(model="scripted", messages=[user("Where is it?")], stream=True)
        try:
            for chunk in stream:
                got += chunk.choices[0].delta.content or ""
        except openai.APIConnectionError:
            got += " (broken off)"
    assert got == "It is in the (broken off)"
    gate.until_rows([("s1", "user", "Where is it?")])


def test_several_choices_are_the_hosts_to_choose_from(gate: Gated) -> None:
    two = [{"index": n, "message": {"role": "assistant", "content": f"{n}"}, "finish_reason": "stop"} for n in (0, 1)]
    gate.upstream.answer = lambda asked: replace(
        said(""),
        pieces=[said("").pieces[0].replace(b'"choices": [', b'"choices": ' + json.dumps(two).encode() + b', "x": [')],
    )
    with gate.openai() as opened:
        answer = opened.chat.completions.create(model="scripted", messages=[user("Pick one.")], n=2)
    assert [choice.message.content for choice in answer.choices] == ["0", "1"]
    gate.upstream.answer = lambda _asked: said("Fine.")
    gate.chat([user("Pick one."), assistant("1"), user("Good.")])
    rows = [("user", "Pick one."), ("assistant", "1"), ("user", "Good."), ("assistant", "Fine.")]
    gate.until_rows([("s1", *row) for row in rows])


def test_a_compressed_answer_is_read_all_the_same(gate: Gated) -> None:
    whole = gzip.compress(said("Compressed though asked not to.").pieces[0])
    gate.upstream.answer = lambda _asked: Answer(pieces=[whole], headers={"content-encoding": "gzip"})
    assert gate.chat([user("Hello.")]) == "Compressed though asked not to."
    assert gate.upstream.last.headers["accept-encoding"] == "identity"
    gate.until_rows([("s1", "user", "Hello."), ("s1", "assistant", "Compressed though asked not to.")])


def test_without_a_session_the_first_words_name_it(gate: Gated) -> None:
    opening = [user("Plan my move to Bergen.")]
    gate.chat(opening, user=None, session=None, extra_body={"user": "ada"})
    gate.chat([*opening, assistant("Noted."), user("In May.")], user=None, session=None, extra_body={"user": "ada"})
    eventually(lambda: len(gate.rows()) == 4, "both turns are recorded")
    assert [row[1:] for row in gate.rows()] == [
        ("user", "Plan my move to Bergen."),
        ("assistant", "Noted."),
        ("user", "In May."),
        ("assistant", "Noted."),
    ]
    assert len({row[0] for row in gate.rows()}) == 1
    assert gate.upstream.last.body["user"] == "ada"


def test_two_users_at_once_see_their_own(gate: Gated) -> None:
    def talk(name: str, secret: str) -> None:
        for number in range(5):
            gate.chat([user(f"My door code is {secret}, part {number}.")], user=name, session=f"{name}-{number}")

    people = {"ada": "4711", "bob": "0815"}
    threads = [threading.Thread(target=talk, args=one) for one in people.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eventually(lambda: len(gate.rows()) == 20, "everything is recorded")
    for name, secret in people.items():
        gate.chat([user("What is my door code?")], user=name, session=f"{name}-later")
        [other] = set(people.values()) - {secret}
        assert secret in gate.upstream.last.prompt
        assert other not in gate.upstream.last.prompt


def test_a_summary_by_the_upstream_takes_the_place_of_the_extract(settings: Settings) -> None:
    with gated(settings, gateway_window_tokens=1_000) as gate:
        gate.upstream.answer = lambda asked: said("Ada packs for Bergen." if is_summary(asked) else "Noted.")
        messages: list[Any] = [system("You help.")]
        for number in range(12):
            messages.append(user(f"Item {number} of the move: {'boxes and tape ' * 18}. And more."))
            gate.chat(messages)
            messages.append(assistant("Noted."))
        eventually(lambda: any(is_summary(one) for one in gate.upstream.asked), "a summary is asked for")
        extracts = [one for one in gate.upstream.chats if "- user: Item " in one.prompt]
        assert extracts
        asked_for = [one for one in gate.upstream.asked if is_summary(one)]
        assert all(one.headers["authorization"] == "Bearer sk-client" for one in asked_for)
        assert "Item 0 of the move" in asked_for[0].prompt

        def summarised() -> bool:
            gate.chat(messages[:-1])
            return "Ada packs for Bergen." in gate.upstream.last.body["messages"][0]["content"]

        eventually(summarised, "the summary is used")
        assert max(one.tokens for one in gate.upstream.asked) <= 1_000
