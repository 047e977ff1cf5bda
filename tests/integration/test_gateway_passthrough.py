"""No regression: whatever memory cannot do, the upstream gets the client's bytes and the client the upstream's."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from calmem.errors import InvalidInput
from calmem.keys import Keys
from calmem.memory import Memory
from calmem.settings import Settings
from calmem.storage.pool import Database
from calmem_services.gateway.app import create_app
from calmem_services.local.postgres import EmbeddedPostgres
from calmem_services.local.redis import EmbeddedRedis
from tests.support.gateway import Gated, assistant, gated, user
from tests.support.http import client
from tests.support.processes import Process, eventually
from tests.support.upstream import EVENTS, JSON, Answer, said, scripted_upstream, words

# Written as no encoder would, so that one on the way shows.
ODD = b'{ "stream":false,"model" : "m", "temperature": 1.0e0, "user": "ada",\n "messages": [{"role":"user",   "content":"\\u0048i \\ud83d\\ude00"}] }\t'
HEADERS = {"content-type": JSON, "x-calmem-session": "s1", "authorization": "Bearer sk-client", "x-trace": "t-1"}
REFUSED = Answer(
    status=429,
    pieces=[b'{"error": {"message": "slow down", "type": "rate_limit"} }'],
    headers={"retry-after": "7", "x-request-id": "req-9"},
)


def assert_untouched(gate: Gated) -> None:
    """Whole answers, streams and errors, in both directions."""
    plain = said("Hi.")
    stream = words("One two three")
    for answer in (plain, stream, REFUSED, Answer(status=500, content_type="text/plain", pieces=[b"boom"])):
        gate.upstream.answer = lambda _asked, answer=answer: answer  # type: ignore[misc]
        got = gate.http.post("/v1/chat/completions?trace=a%20b", content=ODD, headers=HEADERS)
        sent = gate.upstream.last
        assert sent.raw == ODD
        assert sent.path == "/v1/chat/completions?trace=a%20b"
        assert sent.headers["authorization"] == "Bearer sk-client"
        assert sent.headers["x-trace"] == "t-1"
        assert sent.headers["content-type"] == JSON
        assert not [name for name in sent.headers if name.startswith("x-calmem")]
        assert got.status_code == answer.status
        assert got.content == b"".join(answer.pieces)
        assert got.headers["content-type"] == answer.content_type
        for name, value in answer.headers.items():
            assert got.headers[name] == value


def remember(settings: Settings, content: str = "Hi was the name of my dog.") -> None:
    with Memory(settings=settings) as memory:
        memory.record(user_id="ada", session_id="s0", role="user", content=content)


def test_memory_at_work_changes_the_same_request(settings: Settings) -> None:
    """What the tests below would not notice without it."""
    remember(settings)
    with gated(settings) as gate:
        gate.http.post("/v1/chat/completions", content=ODD, headers=HEADERS)
        assert gate.upstream.last.raw != ODD
        assert "name of my dog" in gate.upstream.last.prompt
        assert gate.upstream.last.texts[-1] == "Hi 😀"
        assert not [name for name in gate.upstream.last.headers if name.startswith("x-calmem")]


def test_memory_off(settings: Settings) -> None:
    remember(settings)
    with Memory(settings=settings) as memory:
        memory.put_user("ada", memory="off")
        with gated(settings, gateway_window_tokens=500) as gate:
            assert_untouched(gate)
            long = [one for n in range(40) for one in (user(f"{n} {'words ' * 40}"), assistant("Noted."))]
            body = json.dumps({"model": "m", "user": "ada", "messages": [*long, user("End.")]}).encode()
            gate.http.post("/v1/chat/completions", content=body, headers=HEADERS)
            assert gate.upstream.last.raw == body
            assert gate.memory()["off"] >= 5
        with psycopg.connect(settings.database_url) as conn:
            assert conn.execute("SELECT count(*) FROM messages").fetchone() == (1,)


def test_no_user_is_named(settings: Settings) -> None:
    body = ODD.replace(b'"user": "ada",', b"")
    with gated(settings) as gate:
        for headers in (HEADERS, {"content-type": JSON}):
            gate.http.post("/v1/chat/completions", content=body, headers=headers)
            assert gate.upstream.last.raw == body
        assert gate.rows() == []


def test_what_was_said_with_memory_off_stays_out_when_it_is_on_again(settings: Settings) -> None:
    with gated(settings) as gate, Memory(settings=settings) as memory:
        said_so_far: list[Any] = []
        for state, text in (("on", "Before."), ("off", "Between us."), ("on", "After.")):
            memory.put_user("ada", memory=state)
            said_so_far.append(user(text))
            gate.upstream.answer = lambda _asked, text=text: said(f"You said: {text}")  # type: ignore[misc]
            answer = gate.chat(said_so_far)
            said_so_far.append(assistant(answer))
            if state == "on":
                eventually(lambda answer=answer: ("s1", "assistant", answer) in gate.rows(), "it is recorded")  # type: ignore[misc]
        assert [row[2] for row in gate.rows()] == ["Before.", "You said: Before.", "After.", "You said: After."]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"user": "ada", "messages": [{"role": "assistant", "tool_calls": 5}]}',
        b'{"user": "ada", "messages": [{"role": "assistant", "content": {"a": 1}}]}',
        b"not json",
        b'{"user": "ada", "messages": "none"}',
        b'{"user": "ada", "messages": []}',
        b'{"user": "ada", "messages": ["text"]}',
        b'{"user": "ada", "messages": [{"role": "wizard", "content": "x"}]}',
        b'{"user": "ada", "messages": [{"role": "user", "content": 5}]}',
        b'{"user": "*", "messages": [{"role": "user", "content": "x"}]}',
        b'{"user": 7, "messages": [{"role": "user", "content": "x"}]}',
        b'["user"]',
        b'{"user": "ada", "messages": ' + b"[" * 3_000,
    ],
)
def test_what_is_no_chat_is_the_upstreams_to_refuse(settings: Settings, body: bytes) -> None:
    with (
        scripted_upstream() as upstream,
        client(create_app(replace(settings, gateway_upstream_url=upstream.url))) as http,
    ):
        upstream.answer = lambda _asked: REFUSED
        answer = http.post("/v1/chat/completions", content=body, headers={"content-type": JSON})
        assert answer.status_code == 429
        assert answer.content == REFUSED.pieces[0]
        assert upstream.last.raw == body


def test_postgres_away_and_back(settings: Settings, postgres: EmbeddedPostgres) -> None:
    remember(settings)
    quick = {"recall_deadline_ms": 300, "pool_wait_seconds": 0.5}
    with gated(settings, **quick) as gate:
        postgres.pause()
        try:
            assert_untouched(gate)
            assert gate.http.get("/readyz").status_code == 200
            assert gate.http.get("/readyz").json()["status"] == "degraded"
        finally:
            postgres.resume()

        def recalled() -> bool:
            gate.upstream.answer = lambda _asked: said("Hi.")
            gate.http.post("/v1/chat/completions", content=ODD, headers=HEADERS)
            return "name of my dog" in gate.upstream.last.prompt

        eventually(recalled, "memory is back")
        # What was said meanwhile is recorded with its replay.
        eventually(lambda: ("s1", "user", "Hi 😀") in gate.rows(), "the turn is recorded")


def test_redis_away_and_back(settings: Settings, redis_server: EmbeddedRedis) -> None:
    remember(settings)
    with gated(settings) as gate:
        redis_server.stop()
        assert_untouched(gate)
        # Recording does not need it.
        eventually(lambda: ("s1", "user", "Hi 😀") in gate.rows(), "the turn is recorded")
        redis_server.start()
        gate.http.post("/v1/chat/completions", content=ODD, headers=HEADERS)
        assert "name of my dog" in gate.upstream.last.prompt


@contextmanager
def locked(settings: Settings, table: str) -> Iterator[None]:
    with psycopg.connect(settings.database_url) as conn:
        conn.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
        yield


@pytest.mark.parametrize("table", ["users", "chunks", "vectors"])
@pytest.mark.parametrize("deadlines", [(200, 30_000), (30_000, 200)], ids=["recall's", "the gateway's"])
def test_recall_past_a_deadline(settings: Settings, table: str, deadlines: tuple[int, int], tmp_path: Path) -> None:
    """A lock holds up the search: recall gives up by itself, wholly or the half of it, or is given up."""
    remember(settings)
    assert Process(["-m", "calmem_services.cli.main", "worker", "--burst"], settings, tmp_path / "log").wait() == 0
    recall, gateway = deadlines
    with gated(settings, recall_deadline_ms=recall, gateway_deadline_ms=gateway) as gate, locked(settings, table):
        assert_untouched(gate)


def test_a_session_of_another_user(settings: Settings) -> None:
    with Memory(settings=settings) as memory:
        memory.record(user_id="bob", session_id="s1", role="user", content="Hi from Bob.")
    with gated(settings) as gate:
        assert_untouched(gate)
        assert gate.rows() == [("s1", "user", "Hi from Bob.")]


def test_a_turn_too_large_for_memory_passes_and_its_neighbours_are_kept(settings: Settings) -> None:
    with gated(settings, message_bytes=1_000, gateway_window_tokens=100_000) as gate:
        long = "far too long " * 200
        gate.chat([user("Before."), assistant("Yes?"), user(long)])
        assert gate.upstream.last.texts[-1] == long
        gate.until_rows([("s1", "user", "Before."), ("s1", "assistant", "Yes?"), ("s1", "assistant", "Noted.")])


def test_calls_too_large_to_keep_leave_their_text(settings: Settings) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": "b" * 70_000})}}
    with gated(settings) as gate:
        result = {"role": "tool", "tool_call_id": "c1", "content": "Done."}
        gate.chat([user("Call it."), assistant("I call it.", tool_calls=[call]), result])
        assert gate.upstream.last.body["messages"][-2:] == [assistant("I call it.", tool_calls=[call]), result]
        rows = [("user", "Call it."), ("assistant", "I call it."), ("tool", "Done."), ("assistant", "Noted.")]
        gate.until_rows([("s1", *row) for row in rows])


def test_models_and_other_paths(settings: Settings) -> None:
    with gated(settings) as gate:
        gate.upstream.answer = lambda _asked: Answer(
            pieces=[b'{"object": "list", "data": [{"id": "m", "object": "model"}]}']
        )
        with gate.openai() as opened:
            assert [model.id for model in opened.models.list()] == ["m"]
        assert (gate.upstream.asked[-1].method, gate.upstream.asked[-1].path) == ("GET", "/v1/models")
        gate.http.delete("/v1/models/ft%2Fold?force=1")
        assert (gate.upstream.asked[-1].method, gate.upstream.asked[-1].path) == (
            "DELETE",
            "/v1/models/ft%2Fold?force=1",
        )
        gate.http.post("/v1/embeddings", content=b"\x00\xff raw", headers={"content-type": "x/y"})
        assert gate.upstream.asked[-1].raw == b"\x00\xff raw"


def test_with_a_key_of_its_own_it_serves_chats_and_models_only(settings: Settings) -> None:
    with gated(settings, gateway_upstream_key="sk-own") as gate:
        for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/v1/models/org/m")):
            assert gate.http.request(method, path, headers=HEADERS).status_code == 200
            assert gate.upstream.asked[-1].headers["authorization"] == "Bearer sk-own"
        before = len(gate.upstream.asked)
        for path in ("/v1/files", "/v1/models/%2e%2e/files", "/v1/chat", "/v1/chat/completions/x", "/v1/"):
            answer = gate.http.get(path)
            assert answer.status_code == 404
            assert answer.json()["error"]["type"] == "invalid_request_error"
        assert len(gate.upstream.asked) == before


def test_an_upstream_that_cannot_be_reached(settings: Settings) -> None:
    with gated(settings) as gate:
        pass
    chosen = replace(settings, gateway_upstream_url=gate.upstream.url)
    with client(create_app(chosen)) as http:
        answer = http.post("/v1/chat/completions", content=ODD, headers=HEADERS)
    assert answer.status_code == 502
    assert answer.json()["error"]["type"] == "upstream_error"


def test_an_upstream_that_stays_silent(settings: Settings) -> None:
    done = threading.Event()
    with gated(settings, gateway_timeout_seconds=0.3) as gate:
        gate.upstream.answer = lambda _asked: said("late") if done.wait(30) else said("later")
        try:
            answer = gate.http.post("/v1/chat/completions", content=ODD, headers=HEADERS)
        finally:
            done.set()
    assert answer.status_code == 504


@pytest.mark.parametrize("named", [True, False], ids=["with memory", "without"])
def test_a_client_that_leaves_takes_the_upstreams_answer_with_it(settings: Settings, named: bool) -> None:
    body = ODD if named else ODD.replace(b'"user": "ada",', b"")
    gone = threading.Event()
    with gated(settings) as gate:
        pieces = [b"data: {}\n\n"] * 2_000

        def wait() -> None:
            gone.wait(0.05)

        gate.upstream.answer = lambda _asked: Answer(content_type=EVENTS, pieces=pieces, wait=wait)
        with gate.http.stream("POST", "/v1/chat/completions", content=body, headers=HEADERS) as answer:
            next(answer.iter_raw())
        eventually(lambda: gate.upstream.left == 1, "the upstream is left too")
        gone.set()
    assert [row for row in gate.rows() if row[1] == "assistant"] == []


def test_a_client_that_leaves_before_the_first_byte(settings: Settings) -> None:
    asked, done = threading.Event(), threading.Event()

    def slow(_asked: Any) -> Answer:
        asked.set()
        done.wait(30)
        return Answer(content_type=EVENTS, pieces=[b"x" * 65_536] * 200)

    with gated(settings) as gate:
        gate.upstream.answer = slow
        with pytest.raises(httpx.ReadTimeout):
            gate.http.post("/v1/chat/completions", content=ODD, headers=HEADERS, timeout=httpx.Timeout(2.0))
        assert asked.is_set()
        done.set()
        eventually(lambda: gate.upstream.left == 1, "the upstream is left too")


def test_once_there_is_a_key_it_is_asked_for(settings: Settings) -> None:
    with Database(settings) as database:
        keys = Keys(database)
        whole = keys.create(name="host", scopes=["record", "recall"]).secret
        adas = keys.create(name="ada", scopes=["record", "recall"], user_id="ada").secret
        facts = keys.create(name="facts", scopes=["facts"]).secret
    with gated(settings) as gate:
        tried = [
            (None, "ada", 401),
            ("calmem_nonsense", "ada", 401),
            (facts, "ada", 403),
            (adas, "bob", 403),
            (adas, "ada", 200),
            (whole, "bob", 200),
        ]
        for key, name, status in tried:
            headers = {**HEADERS, "x-calmem-user": name, "x-calmem-session": name}
            headers |= {} if key is None else {"x-calmem-key": key}
            answer = gate.http.post("/v1/chat/completions", content=ODD, headers=headers)
            assert answer.status_code == status
            assert status == 200 or answer.json()["error"]["message"]
        # The client's own key went on, ours stayed.
        assert [one.headers["authorization"] for one in gate.upstream.asked] == ["Bearer sk-client"] * 2
        assert not [one for one in gate.upstream.asked if "x-calmem-key" in one.headers]
        assert gate.http.get("/v1/models").status_code == 401


def test_a_web_page_of_elsewhere_is_not_served(settings: Settings) -> None:
    with gated(settings) as gate:
        for headers in ({"origin": "https://evil.example"}, {"host": "evil.example"}):
            answer = gate.http.post("/v1/chat/completions", content=ODD, headers={**HEADERS, **headers})
            assert answer.status_code == 403
        assert gate.upstream.asked == []


@pytest.mark.parametrize(
    ("change", "variable"),
    [
        ({"gateway_upstream_url": ""}, "GATEWAY_UPSTREAM_URL"),
        ({"gateway_upstream_url": "ftp://x"}, "GATEWAY_UPSTREAM_URL"),
        ({"gateway_inject": "end"}, "GATEWAY_INJECT"),
        ({"gateway_summary": "no"}, "GATEWAY_SUMMARY"),
        ({"gateway_window_tokens": 100}, "GATEWAY_WINDOW_TOKENS"),
        ({"gateway_compact_to": 0.8}, "GATEWAY_COMPACT_TO"),
        ({"gateway_compact_at": 1.5}, "GATEWAY_COMPACT_TO"),
    ],
)
def test_settings_that_cannot_be(change: dict[str, Any], variable: str) -> None:
    chosen = replace(Settings(database_url="postgresql:///x", gateway_upstream_url="http://127.0.0.1/v1"), **change)
    with pytest.raises(InvalidInput, match=f"CALMEM_{variable}"):
        create_app(chosen)
