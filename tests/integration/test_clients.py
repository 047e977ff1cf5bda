"""The same calls through each of the four doors: the same answers, the same errors."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, date, datetime
from typing import Any

import psycopg
import pytest

from calmem import AsyncMemory, Memory
from calmem.errors import CalmemError, Conflict, InvalidInput, ModelUnavailable, PermanentError
from calmem.model import Lane, Recall
from calmem.models import Models
from calmem.queueing import WakeUps
from calmem.settings import Settings
from calmem.storage.pool import Database
from calmem_workers.index import Drainer
from tests.support.doors import DOORS, all_doors, door
from tests.support.rows import rows

ASKED: dict[str, Any] = {"user_id": "ada", "session_id": "s2", "query": "the boiler of the cabin"}
ROOM: dict[str, Any] = {"current_tokens": 100, "context_window_capacity": 10_000}
TURN: dict[str, Any] = {"user_id": "ada", "session_id": "s1", "role": "user", "content": "The boiler is a Vaillant."}
each_door = pytest.mark.parametrize("name", DOORS)


def timeless(found: Recall) -> Recall:
    assert found.timings_ms["total"] > 0
    return replace(found, timings_ms={})


def test_both_classes_have_the_same_calls() -> None:
    def calls(kind: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")}

    assert calls(Memory) == calls(AsyncMemory)
    assert {"record", "record_many", "recall", "search", "remember_fact", "recall_facts", "forget_fact"} < calls(Memory)
    assert inspect.signature(Memory.__init__) == inspect.signature(AsyncMemory.__init__)


def test_what_one_door_wrote_every_door_reads_alike(settings: Settings) -> None:
    with all_doors(settings) as doors:
        for number, (name, memory) in enumerate(doors.items()):
            memory.record(
                user_id="ada",
                session_id="s1",
                role="user",
                name="Ada",
                content=f"The boiler of cabin {number} is a Vaillant, said by {name}.",
                message_id=f"m{number}",
                created_at=datetime(2025, 3, 30, 2, number, tzinfo=UTC),
                metadata={"door": name, "nested": {"list": [1, 2.5, None, True]}},
            )
            memory.remember_fact(user_id="ada", session_id="s2", key="drink", value=f"tea {number}", source=name)
        expires = datetime(2099, 1, 1, tzinfo=UTC)
        doors["http"].remember_fact(user_id="ada", session_id="s2", key="pet", value="cat", expires_at=expires)
        with Database(settings) as database:
            assert Drainer(database, settings, Models(settings), WakeUps("")).drain() == len(DOORS)

        reads: dict[str, Callable[[Memory], Any]] = {
            "recall": lambda memory: timeless(memory.recall(**ASKED, **ROOM)),
            "recall in prose": lambda memory: timeless(memory.recall(**ASKED, **ROOM, style="prose", k=2)),
            "recall of the active": lambda memory: timeless(
                memory.recall(**{**ASKED, **ROOM, "session_id": "s1"}, active_message_ids=["m0", "m3"])
            ),
            "recall by words": lambda memory: timeless(memory.recall(**ASKED, **ROOM, arms={"words"}, block_tokens=90)),
            "search": lambda memory: memory.search(user_id="ada", query="Vaillant boiler", k=3),
            "search since": lambda memory: memory.search(
                user_id="ada", query="boiler", since=datetime(2025, 3, 30, 2, 2, tzinfo=UTC), session_id="s1"
            ),
            "facts": lambda memory: memory.recall_facts(user_id="ada"),
            "facts by glob": lambda memory: memory.recall_facts(user_id="ada", pattern="d*", session_id="s2"),
            "history": lambda memory: memory.fact_history(user_id="ada", session_id="s2", key="drink"),
            "user": lambda memory: memory.get_user("ada"),
            "sessions": lambda memory: memory.sessions("ada"),
            "messages": lambda memory: memory.messages("ada", "s1", limit=3),
            "the same again": lambda memory: memory.record(
                user_id="ada",
                session_id="s1",
                role="user",
                name="Ada",
                content="The boiler of cabin 0 is a Vaillant, said by direct.",
                message_id="m0",
            ),
        }
        for what, read in reads.items():
            expected = read(doors["direct"])
            assert expected, what
            for name, memory in doors.items():
                assert read(memory) == expected, (what, name)
        found = doors["http"].recall(**ASKED, **ROOM)
        assert len(found.items) == len(DOORS)
        scores = [score for one in found.items for score in (one.score, *one.scores.values())]
        assert scores == [round(score, 6) for score in scores]
        assert found.facts[-1].expires_at == expires


def test_the_same_mistake_is_the_same_error_at_every_door(settings: Settings) -> None:
    naive = datetime(2025, 3, 30, 2, 30)  # noqa: DTZ001  # the mistake
    nothing: Any = None
    calls: dict[str, Callable[[Memory], object]] = {
        "no content": lambda m: m.record(user_id="ada", session_id="s1", role="user"),
        "unknown field": lambda m: m.record(**TURN, colour="red"),
        "role": lambda m: m.record(**{**TURN, "role": "robot"}),
        "lane": lambda m: m.record(**TURN, lane="fast"),
        "the lane of a reindex": lambda m: m.record(**TURN, lane="reindex"),
        "naive time": lambda m: m.record(**TURN, created_at=naive),
        "a day": lambda m: m.record(**TURN, created_at=date(2025, 3, 30)),
        "time in words": lambda m: m.record(**TURN, created_at="yesterday"),
        "metadata": lambda m: m.record(**TURN, metadata={"a": float("nan")}),
        "metadata of bytes": lambda m: m.record(**TURN, metadata={"a": b"x"}),
        "metadata of a list": lambda m: m.record(**TURN, metadata=["a"]),
        "content": lambda m: m.record(**{**TURN, "content": 5}),
        "a part": lambda m: m.record(**{**TURN, "content": [{"type": "text"}]}),
        "too long": lambda m: m.record(**{**TURN, "content": "x" * (settings.message_bytes + 1)}),
        "half a character": lambda m: m.record(**{**TURN, "session_id": "s\ud83c"}),
        "other content": lambda m: m.record(**{**TURN, "content": "else"}, message_id="kept"),
        "another's id": lambda m: m.record(**{**TURN, "user_id": "bob", "session_id": "b"}, message_id="kept"),
        "another's session": lambda m: m.record(**{**TURN, "user_id": "bob"}),
        "one of many": lambda m: m.record_many([TURN, {**TURN, "created_at": naive}]),
        "one of many, unknown": lambda m: m.record_many([TURN, {**TURN, "colour": "red"}]),
        "not a message": lambda m: m.record_many([TURN, "hello"]),  # type: ignore[list-item]
        "not a list": lambda m: m.record_many("hello"),  # type: ignore[arg-type]
        "none": lambda m: m.record_many([]),
        "too many": lambda m: m.record_many([TURN] * (settings.batch_messages + 1)),
        "capacity": lambda m: m.recall(**ASKED, current_tokens=1, context_window_capacity=0),
        "style": lambda m: m.recall(**ASKED, **ROOM, style="verse"),  # type: ignore[arg-type]
        "both": lambda m: m.recall(**ASKED, **ROOM, active_from_seq=1, active_message_ids=["m"]),
        "k": lambda m: m.recall(**ASKED, **ROOM, k=0),
        "arms": lambda m: m.recall(**ASKED, **ROOM, arms=["legs"]),
        "arms of all kinds": lambda m: m.recall(**ASKED, **ROOM, arms={1, "words"}),  # type: ignore[arg-type]
        "now": lambda m: m.recall(**ASKED, **ROOM, now=naive),
        "recall of another's": lambda m: m.recall(**{**ASKED, **ROOM, "user_id": "bob", "session_id": "s1"}),
        "since after until": lambda m: m.search(
            user_id="ada", query="x", since="2025-02-01T00:00:00Z", until="2025-01-01T00:00:00Z"
        ),
        "no argument of that name": lambda m: m.search(user_id="ada", query="x", limit=3),  # type: ignore[call-arg]
        "an argument too few": lambda m: m.search(user_id="ada"),  # type: ignore[call-arg]
        "query": lambda m: m.search(user_id="ada", query=nothing),
        "no value": lambda m: m.remember_fact(user_id="ada", session_id="s1", key="k", value="  "),
        "long key": lambda m: m.remember_fact(user_id="ada", session_id="s1", key="k" * 201, value="v"),
        "no key": lambda m: m.forget_fact(user_id="ada", session_id="s1", key=" "),
        "expiry": lambda m: m.remember_fact(user_id="ada", session_id="s1", key="k", value="v", expires_at=naive),
        "no such fact": lambda m: m.forget_fact(user_id="ada", session_id="s1", key="never"),
        "no such session": lambda m: m.fact_history(user_id="ada", session_id="never", key="k"),
        "pattern": lambda m: m.recall_facts(user_id="ada", pattern="x" * 201),
        "no such user": lambda m: m.get_user("never"),
        "time zone": lambda m: m.put_user("ada", time_zone="Mars/Olympus"),
        "memory": lambda m: m.put_user("ada", memory="maybe"),
        "delete nobody": lambda m: m.delete_user("never"),
        "delete another's": lambda m: m.delete_session("bob", "s1"),
        "delete no message": lambda m: m.delete_message("ada", "never"),
        "cursor": lambda m: m.sessions("ada", cursor="x"),
        "limit": lambda m: m.messages("ada", "s1", limit=0),
        "messages of nobody": lambda m: m.messages("never", "s1"),
    }
    with all_doors(settings) as doors:
        doors["direct"].record(**TURN, message_id="kept")
        doors["direct"].put_user("bob", memory="on")
        before = rows(settings)
        for what, call in calls.items():
            errors = {name: _error(memory, call) for name, memory in doors.items()}
            assert errors == dict.fromkeys(DOORS, errors["direct"]), what
        assert rows(settings) == before


def _error(memory: Memory, call: Callable[[Memory], object]) -> tuple[type, str, str | None]:
    with pytest.raises((CalmemError, TypeError)) as caught:
        call(memory)
    if isinstance(caught.value, TypeError):
        return TypeError, "", None  # Python's own words differ
    return caught.type, str(caught.value), caught.value.field if isinstance(caught.value, InvalidInput) else None


@each_door
def test_ids_may_hold_what_an_address_cannot(settings: Settings, name: str) -> None:
    odd = ("..", ".", "a/b", "a?b=c&d", "#", "50%2F", "ключ от дома", "a+b c", "x:y", "\U0001f9f8")
    with door(name, settings) as memory:
        for one in odd:
            user, session, key, message = one, f"s{one}", one, f"m{one}"
            memory.record(user_id=user, session_id=session, role="user", content="hello", message_id=message)
            stored = memory.remember_fact(user_id=user, session_id=session, key=key, value="v", category=one)
            assert stored is not None
            assert (stored.session_id, stored.key, stored.category) == (session, key, one)
            assert memory.get_user(user).user_id == user
            assert [fact.key for fact in memory.recall_facts(user_id=user, category=one)] == [key]
            assert [turn.message_id for turn in memory.messages(user, session)[0]] == [message]
            assert memory.fact_history(user_id=user, session_id=session, key=key) == []
            assert memory.forget_fact(user_id=user, session_id=session, key=key).removed == {"facts": 1}
            assert memory.delete_message(user, message).removed["messages"] == 1
            assert memory.delete_session(user, session).removed["sessions"] == 1
            assert memory.delete_user(user).removed["users"] == 1


@each_door
def test_text_comes_back_as_the_sanitiser_left_it(settings: Settings, name: str) -> None:
    with door(name, settings) as memory:
        for content in (
            "Acme\x00 moved",
            "cheers \ud83c and \udf78",
            "e\u0301",
            None,
            ["two", {"type": "text", "text": "parts"}],
        ):
            memory.record(user_id="ada", session_id="s1", role="assistant", content=content)
        stored = [turn.content for turn in memory.messages("ada", "s1")[0]]

    assert stored == ["Acme moved", "cheers \ufffd and \ufffd", "\u00e9", "", "two\nparts"]


@each_door
def test_a_lane_of_its_own_for_old_history(settings: Settings, name: str) -> None:
    with door(name, settings) as memory:
        memory.record(**TURN)
        memory.record(**TURN, lane="backfill")
        stored = memory.record_many([TURN, {**TURN, "message_id": "mine"}], lane=Lane.BACKFILL)

    assert [one.seq for one in stored] == [3, 4]
    assert stored[1].message_id == "mine"
    with psycopg.connect(settings.database_url) as conn:
        lanes = conn.execute("SELECT lane, count(*) FROM index_tasks GROUP BY lane ORDER BY lane").fetchall()
    assert lanes == [("backfill", 3), ("live", 1)]


@each_door
def test_pages_continue_where_the_last_one_ended(settings: Settings, name: str) -> None:
    with door(name, settings) as memory:
        memory.record_many([{**TURN, "message_id": f"m{n}"} for n in range(5)])
        seen: list[str] = []
        cursor = None
        while True:
            page, cursor = memory.messages("ada", "s1", cursor=cursor, limit=2)
            seen += [turn.message_id for turn in page]
            if cursor is None:
                break

    assert seen == [f"m{n}" for n in range(5)]


@each_door
def test_warm_has_the_model_loaded_before_the_first_recall(
    settings: Settings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with door(name, settings) as memory:
        memory.record(**TURN)
        with Database(settings) as database:
            Drainer(database, settings, Models(settings), WakeUps("")).drain()
        memory.warm()
        monkeypatch.setattr("calmem.embedding.load", _not_again)
        found = memory.recall(user_id="ada", session_id="s2", query="Which boiler is it?", **ROOM)

    assert found.degraded is None
    assert found.items[0].scores["cosine"] > 0


def _not_again(*_arguments: object) -> None:
    raise AssertionError("the model is loaded once more")


def test_warm_says_what_is_wrong_with_the_model(settings: Settings) -> None:
    broken = replace(settings, model="nobody/knows-this", model_path="/nowhere")
    with psycopg.connect(settings.database_url) as conn:
        conn.execute("UPDATE search_indexes SET model = 'nobody/knows-this'")
    with Memory(settings=broken) as memory, pytest.raises(ModelUnavailable, match=r"knows-this|nowhere"):
        memory.warm()


def test_over_http_no_driver_queue_or_model_is_loaded() -> None:
    program = (
        "import sys\n"
        "from calmem import Memory\n"
        "Memory(ingest_url='http://127.0.0.1:1', retrieval_url='http://127.0.0.1:1').close()\n"
        "print([name for name in ('psycopg', 'rq', 'redis', 'onnxruntime', 'fastembed') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_what_is_given_decides_and_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    database, ingest = "postgresql://127.0.0.1:1/calmem", "http://127.0.0.1:8101/"
    for setting in fields(Settings):
        monkeypatch.delenv(f"CALMEM_{setting.name.upper()}", raising=False)

    def kind(*urls: str, **given: str) -> str:
        with Memory(*urls, **given) as memory:  # type: ignore[arg-type]
            return type(memory._backend).__name__

    with pytest.raises(PermanentError, match=r"CALMEM_DATABASE_URL.*CALMEM_INGEST_URL"):
        kind()
    assert kind(database) == "Direct"
    assert kind(retrieval_url=ingest) == "Remote"
    monkeypatch.setenv("CALMEM_INGEST_URL", ingest)
    assert kind() == "Remote"
    assert kind(database) == "Direct"
    monkeypatch.setenv("CALMEM_DATABASE_URL", database)
    assert kind() == "Direct"
    assert kind(ingest_url=ingest) == "Remote"
    with pytest.raises(InvalidInput, match=r"database_url.*not both"):
        kind(database, ingest_url=ingest)
    with pytest.raises(InvalidInput, match=r"database_url.*ingest_url"):
        kind("http://127.0.0.1:8101")
    for wrong in ("127.0.0.1:8101", "ftp://host", "http://", "http://host:port", "http://host/?a=b"):
        with pytest.raises(InvalidInput, match="CALMEM_INGEST_URL"):
            kind(ingest_url=wrong)
    with pytest.raises(InvalidInput, match="CALMEM_API_KEY"):
        kind(ingest_url=ingest, api_key="calmem_\n")


@each_door
def test_a_conflict_says_nothing_of_the_other(settings: Settings, name: str) -> None:
    with door(name, settings) as memory:
        memory.record(**{**TURN, "content": "The safe opens with 4711."}, message_id="m1")
        with pytest.raises(Conflict) as refused:
            memory.record(user_id="eve", session_id="e", role="user", content="guess", message_id="m1")

    assert "4711" not in str(refused.value)
    assert "ada" not in str(refused.value)
