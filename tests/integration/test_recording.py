"""`record` against a real Postgres: idempotency, order, refusal, and what commits together."""

from __future__ import annotations

import json
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest

from calmem.errors import Conflict, Forbidden, InvalidInput, NotFound, TransientError
from calmem.memory import Memory
from calmem.settings import Settings
from calmem.text import CLOSE_MARK, OPEN_MARK
from tests.support.processes import eventually


def turn(content: Any = "The garden gate is green.", **fields: Any) -> dict[str, Any]:
    return {"user_id": "ada", "session_id": "s1", "role": "user", "content": content, **fields}


def count(settings: Settings, table: str) -> int:
    with psycopg.connect(settings.database_url) as conn:
        row = conn.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
        assert row is not None
        return int(row[0])


def test_a_message_commits_with_its_task_and_its_words(memory: Memory, settings: Settings) -> None:
    recorded = memory.record(**turn())

    assert recorded.seq == 1
    assert recorded.created
    assert recorded.stored
    assert [count(settings, table) for table in ("messages", "index_tasks", "chunks", "vectors")] == [1, 1, 1, 0]
    found = memory.search(user_id="ada", query="garden gate")
    assert [item.message_id for item in found] == [recorded.message_id]


def test_the_same_message_again_changes_nothing(memory: Memory, settings: Settings) -> None:
    first = memory.record(**turn(message_id="m1"))
    again = memory.record(**turn(message_id="m1"))

    assert (first.created, again.created, again.seq) == (True, False, 1)
    assert count(settings, "messages") == 1
    assert memory.record(**turn("next")).seq == 2


def test_twenty_parallel_retries_make_one_message(memory: Memory, settings: Settings) -> None:
    with ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(lambda _: memory.record(**turn(message_id="m1")), range(20)))

    assert sum(answer.created for answer in answers) == 1
    assert {answer.seq for answer in answers} == {1}
    assert [count(settings, table) for table in ("messages", "index_tasks", "chunks")] == [1, 1, 1]


def test_parallel_first_uses_of_one_id_in_two_sessions_leave_one(memory: Memory, settings: Settings) -> None:
    def attempt(session: str) -> bool:
        try:
            return memory.record(**turn(message_id="m1", session_id=session)).created
        except Conflict:
            return False

    with ThreadPoolExecutor(8) as threads:
        created = list(threads.map(attempt, [f"s{n}" for n in range(8)]))

    assert sum(created) == 1
    assert count(settings, "messages") == 1


@pytest.mark.parametrize(
    "change",
    [
        {"content": "something else"},
        {"role": "assistant"},
        {"session_id": "s2"},
        {"user_id": "bob", "session_id": "s9"},
        {"name": "Ada"},
    ],
)
def test_an_id_with_other_content_is_refused_without_telling_whose(
    memory: Memory, settings: Settings, change: dict[str, Any]
) -> None:
    memory.record(**turn("my secret", message_id="m1"))

    with pytest.raises(Conflict) as refused:
        memory.record(**{**turn("my secret", message_id="m1"), **change})

    assert "secret" not in str(refused.value)
    assert "ada" not in str(refused.value)
    assert count(settings, "messages") == 1


def test_a_user_deleted_while_being_recorded_for_begins_anew(memory: Memory, settings: Settings) -> None:
    """Each deletion waits for a lock that the test holds, so that recorders pile up behind it."""
    memory.record(**turn("before", message_id="before"))
    with ThreadPoolExecutor(8) as threads:
        with psycopg.connect(settings.database_url) as conn:
            conn.execute("SELECT 1 FROM users FOR UPDATE")
            conn.execute("DELETE FROM users")
            answers = [
                threads.submit(memory.record, **turn(f"turn {n}", session_id=f"s{n % 2}", message_id=f"m{n}"))
                for n in range(6)
            ]
            fact = threads.submit(memory.remember_fact, user_id="ada", session_id="s9", key="k", value="v")
            eventually(lambda: waiting(settings) >= 3, "recorders wait for the deletion")
        assert all(answer.result().created for answer in answers)
        with suppress(TransientError):
            fact.result()
    with psycopg.connect(settings.database_url) as conn:
        texts = conn.execute("SELECT content FROM messages ORDER BY message_id").fetchall()
    assert texts == [(f"turn {n}",) for n in range(6)]
    assert count(settings, "users") == 1


def waiting(settings: Settings) -> int:
    with psycopg.connect(settings.database_url) as conn:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        row = conn.execute(sql.encode()).fetchone()
        assert row is not None
        return int(row[0])


def test_another_users_session_is_refused(memory: Memory, settings: Settings) -> None:
    memory.record(**turn())

    with pytest.raises(Forbidden, match="session_id"):
        memory.record(**turn(user_id="bob"))
    with pytest.raises(Forbidden, match="session_id"):
        memory.recall(user_id="bob", session_id="s1", query="garden", current_tokens=0, context_window_capacity=1000)
    with pytest.raises(Forbidden, match="session_id"):
        memory.remember_fact(user_id="bob", session_id="s1", key="k", value="v")
    with pytest.raises(Forbidden, match="session_id"):
        memory.search(user_id="bob", query="garden", session_id="s1") if memory.record(
            **turn(user_id="bob", session_id="b1")
        ) else None
    assert count(settings, "messages") == 2


def _record_fifty(database_url: str, redis_url: str, number: int) -> None:
    with Memory(database_url, redis_url) as memory:
        for turn_no in range(50):
            memory.record(user_id="ada", session_id="s1", role="user", content=f"process {number} turn {turn_no}")


def test_eight_processes_share_a_session_without_gaps(settings: Settings) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=_record_fifty, args=(settings.database_url, settings.redis_url, number))
        for number in range(8)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=120)
    assert [process.exitcode for process in processes] == [0] * 8

    with psycopg.connect(settings.database_url) as conn:
        seqs = [seq for (seq,) in conn.execute("SELECT seq FROM messages ORDER BY seq")]
    assert seqs == list(range(1, 401))


def test_a_batch_is_all_or_nothing(memory: Memory, settings: Settings) -> None:
    with pytest.raises(InvalidInput, match=r"messages\[2\]\.role"):
        memory.record_many([turn("one"), turn("two"), turn("three", role="robot")])
    assert count(settings, "messages") == 0

    memory.record(**turn("taken", message_id="m1"))
    with pytest.raises(Conflict):
        memory.record_many([turn("one"), turn("other", message_id="m1")])
    assert count(settings, "messages") == 1

    answers = memory.record_many([turn("one"), turn("one", message_id="x"), turn("one", message_id="x")])
    assert [(a.seq, a.created) for a in answers] == [(2, True), (3, True), (3, False)]


@pytest.mark.parametrize("batch", [[], "text", {"a": 1}, [1], [turn()] * 1001])
def test_a_batch_of_the_wrong_shape_is_refused(memory: Memory, batch: Any) -> None:
    with pytest.raises(InvalidInput, match="messages"):
        memory.record_many(batch)


@pytest.mark.parametrize(
    ("fields", "named"),
    [({"user_id": value}, "user_id") for value in (None, "", "  ", "*", "%", ["ada"], 7, True, "a" * 257, "a\nb")]
    + [({"session_id": value}, "session_id") for value in (None, "", ["s1"], "*")]
    + [({"message_id": value}, "message_id") for value in ("", ["m"], 5, "%")]
    + [({"role": value}, "role") for value in (None, "", "USER", "robot", ["user"])]
    + [({"content": value}, "content") for value in (5, {"text": "x"}, True, "x" * 1_048_577)]
    + [({"created_at": value}, "created_at") for value in ("2025-03-30T02:30:00", "yesterday", 17, "")]
    + [({"metadata": value}, "metadata") for value in ("x", [1], 5)]
    + [({"name": value}, "name") for value in (5, ["Ada"], "n" * 201)]
    + [({"colour": "green"}, "colour")],
)
def test_bad_fields_are_named_and_nothing_is_stored(
    memory: Memory, settings: Settings, fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        memory.record(**{**turn(), **fields})

    assert refused.value.field == named
    assert refused.value.detail
    assert [count(settings, table) for table in ("users", "sessions", "messages")] == [0, 0, 0]


@pytest.mark.parametrize("missing", ["user_id", "session_id", "role", "content"])
def test_missing_fields_are_named(memory: Memory, missing: str) -> None:
    fields = turn()
    del fields[missing]
    with pytest.raises(InvalidInput, match=missing):
        memory.record(**fields)


def test_a_tool_call_without_text_is_stored_and_not_indexed(memory: Memory, settings: Settings) -> None:
    recorded = memory.record(**turn(None, role="assistant", metadata={"tool_calls": [{"id": "c1"}]}))

    assert recorded.seq == 1
    assert [count(settings, table) for table in ("messages", "index_tasks", "chunks")] == [1, 0, 0]
    assert memory.record(**turn("and on")).seq == 2
    stored, _ = memory.messages("ada", "s1")
    assert (stored[0].content, stored[0].metadata) == ("", {"tool_calls": [{"id": "c1"}]})


def test_text_is_sanitised_on_its_way_in(memory: Memory) -> None:
    memory.record(**turn("Acme moved\x00 to Shenzhen."))
    memory.record(**turn(json.loads(r'"cheers \ud83c and \udf78"')))
    memory.record(**turn([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u"}}, "b"]))

    stored, _ = memory.messages("ada", "s1")
    assert stored[0].content == "Acme moved to Shenzhen."
    assert stored[1].content == "cheers � and �"
    assert stored[2].content.startswith("a\n")
    assert stored[2].content.endswith("\nb")
    assert memory.search(user_id="ada", query="where did Acme move")[0].text == "Acme moved to Shenzhen."


def test_times_are_kept_as_instants_in_utc(memory: Memory, settings: Settings) -> None:
    when = datetime(2025, 5, 1, 23, 30, tzinfo=timezone(timedelta(hours=-7)))
    memory.record(**turn(created_at=when))
    memory.record(**turn(created_at="2025-05-01T23:30:00-07:00"))

    stored, _ = memory.messages("ada", "s1")
    assert [message.created_at for message in stored] == [when, when]
    assert stored[0].created_at.tzinfo == UTC or stored[0].created_at.utcoffset() == timedelta(0)


def test_equal_times_keep_the_order_of_recording(memory: Memory) -> None:
    when = "2025-05-01T10:00:00.123456+00:00"
    ids = [memory.record(**turn(f"turn {n}", created_at=when)).message_id for n in range(3)]
    stored, _ = memory.messages("ada", "s1")
    assert [message.message_id for message in stored] == ids


def test_a_replayed_block_is_stored_but_never_indexed(memory: Memory, settings: Settings) -> None:
    memory.record(**turn("The gate code is 4711-zulu."))
    block = memory.recall(
        user_id="ada", session_id="s2", query="gate code", current_tokens=0, context_window_capacity=1000
    ).block
    assert OPEN_MARK in block
    assert CLOSE_MARK in block
    for number in range(50):
        memory.record(**turn(f"{block}\nquestion number {number}", session_id="s2"))

    assert count(settings, "chunks") == 51
    found = memory.search(user_id="ada", query="gate code zulu", k=100)
    assert [item.session_id for item in found] == ["s1"]


def test_with_redis_away_recording_still_works(settings: Settings) -> None:
    # An error path: the address is one where nothing listens.
    away = replace(settings, redis_url="redis://127.0.0.1:1/0")
    with Memory(settings=away) as memory:
        assert [memory.record(**turn(f"turn {n}")).seq for n in range(3)] == [1, 2, 3]
    assert count(settings, "index_tasks") == 3


def test_with_postgres_away_the_error_says_try_again(settings: Settings) -> None:
    # An error path: the address is one where nothing listens.
    away = replace(settings, database_url="postgresql://u:secret@127.0.0.1:1/x", pool_wait_seconds=0.3)
    with Memory(settings=away) as memory, pytest.raises(TransientError) as refused:
        memory.record(**turn())
    assert "secret" not in str(refused.value)


def test_pages_of_sessions_and_messages(memory: Memory) -> None:
    memory.record_many([turn(f"turn {n}", session_id=f"s{n % 3}") for n in range(9)])

    first, cursor = memory.sessions("ada", limit=2)
    rest, end = memory.sessions("ada", limit=2, cursor=cursor)
    assert [s.session_id for s in first + rest] == ["s0", "s1", "s2"]
    assert end is None
    assert [s.messages for s in first] == [3, 3]

    page, cursor = memory.messages("ada", "s1", limit=2)
    tail, end = memory.messages("ada", "s1", limit=2, cursor=cursor)
    assert [m.seq for m in page + tail] == [1, 2, 3]
    assert end is None
    for bad in ("x", "!", "FF" * 20):
        with pytest.raises(InvalidInput, match="cursor"):
            memory.sessions("ada", cursor=bad)
    with pytest.raises(InvalidInput, match="limit"):
        memory.sessions("ada", limit=0)
    with pytest.raises(NotFound):
        memory.messages("ada", "nowhere")
