"""Nothing is lost and nothing is doubled: real workers and servers, stopped and killed in the middle of their work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from calmem.memory import Memory
from calmem.settings import Settings
from calmem.storage.migrate import migrate
from calmem_services.local.postgres import EmbeddedPostgres
from calmem_services.local.redis import EmbeddedRedis
from tests.support.poisoned_worker import DEADLY, POISON, SLOW
from tests.support.processes import Process, eventually, running

READY = "worker_ready"
VECTORS = "SELECT count(*) FROM vectors"


@pytest.fixture
def memory(settings: Settings) -> Iterator[Memory]:
    with Memory(settings=settings) as opened:
        yield opened


def turns(count: int, user: str = "ada", text: str = "Turn {n} about the garden") -> list[dict[str, Any]]:
    return [
        {
            "user_id": user,
            "session_id": f"{user}-s",
            "message_id": f"{user}-{n}",
            "role": "user",
            "content": text.format(n=n),
        }
        for n in range(count)
    ]


def query(settings: Settings, sql: str, *values: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(settings.database_url) as conn:
        return conn.execute(sql.encode(), values).fetchall()


def indexed(settings: Settings, count: int) -> bool:
    """Every one of `count` messages has each of its chunks with exactly one vector, and nothing is pending."""
    rows = query(
        settings,
        """SELECT (SELECT count(*) FROM messages), (SELECT count(*) FROM index_tasks),
                  (SELECT count(*) FROM chunks), (SELECT count(*) FROM vectors),
                  (SELECT count(DISTINCT message_no) FROM chunks)""",
    )[0]
    return rows[:2] == (count, 0) and rows[2] == rows[3] and rows[4] == count


@contextmanager
def poisoned(settings: Settings, log: Path) -> Iterator[Process]:
    process = Process(["-m", "tests.support.poisoned_worker"], settings, log)
    try:
        eventually(lambda: READY in process.text() or not process.running, f"{READY} in {log}")
        yield process
    finally:
        process.kill()


def test_messages_recorded_while_redis_is_down_are_indexed_later(
    memory: Memory, settings: Settings, redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    redis_server.stop()
    for turn in turns(20):
        assert memory.record(**turn).created
    redis_server.start()
    with running(["worker"], settings, tmp_path / "worker.log", ready=READY):
        eventually(lambda: indexed(settings, 20), "20 messages indexed without further action")


def test_a_flushed_redis_loses_nothing(memory: Memory, settings: Settings, tmp_path: Path) -> None:
    memory.record_many(turns(100))
    redis.Redis.from_url(settings.redis_url).flushall()
    with (
        running(["worker"], settings, tmp_path / "worker.log", ready=READY),
        running(["sweeper"], settings, tmp_path / "sweeper.log"),
    ):
        eventually(lambda: indexed(settings, 100), "100 messages indexed")


def test_a_worker_lives_through_a_redis_that_goes_and_comes(
    memory: Memory, settings: Settings, redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    with running(["worker"], settings, tmp_path / "worker.log", ready=READY) as worker:
        redis_server.stop()
        memory.record_many(turns(5))
        eventually(lambda: indexed(settings, 5), "indexing goes on without Redis")
        redis_server.start()
        memory.record_many(turns(5, "bob"))
        eventually(lambda: indexed(settings, 10), "indexing goes on with Redis")
        assert worker.running
        assert worker.stop() == 0


def test_a_worker_killed_in_its_batch_delays_its_messages_by_the_lease(
    memory: Memory, settings: Settings, tmp_path: Path
) -> None:
    memory.record_many(turns(64, text=f"Turn {{n}} {SLOW}"))
    with poisoned(settings, tmp_path / "first.log") as first:
        eventually(lambda: "embedding slowly" in first.text(), "the first worker is in its batch")
        first.kill()
    leased = query(settings, "SELECT count(*) FROM index_tasks WHERE lease_token IS NOT NULL AND attempts = 1")
    assert leased == [(64,)]

    with running(["worker"], settings, tmp_path / "second.log", ready=READY):
        eventually(lambda: indexed(settings, 64), "64 messages indexed exactly once")


def test_postgres_restarted_under_a_worker_costs_no_attempt(
    settings: Settings, redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    own = EmbeddedPostgres(tmp_path / "postgres")
    own.start()
    try:
        with psycopg.connect(own.url("postgres"), autocommit=True) as conn:
            conn.execute("CREATE DATABASE own")
        own_settings = replace(settings, database_url=own.url("own"))
        migrate(own_settings.database_url)
        with Memory(settings=own_settings) as memory:
            memory.record_many(turns(8, text=f"Turn {{n}} {SLOW}"))
            with poisoned(own_settings, tmp_path / "worker.log") as worker:
                eventually(lambda: "embedding slowly" in worker.text(), "the worker is in its batch")
                own.pause()
                eventually(lambda: "database_away" in worker.text(), "the worker notices the outage")
                own.resume()
                eventually(lambda: indexed(own_settings, 8), "8 messages indexed after the restart")
                # One claim wrote them all: what was embedded before the outage was kept.
                assert worker.text().count('"claimed": 8') == 1
                assert memory.record(**turns(1, "bob")[0]).created
                eventually(lambda: indexed(own_settings, 9), "and the worker goes on")
                assert worker.stop() == 0
    finally:
        own.stop()


def test_a_poison_message_is_set_aside_and_its_neighbours_are_indexed(
    memory: Memory, settings: Settings, tmp_path: Path
) -> None:
    quick = replace(settings, max_attempts=2)
    batch = turns(10)
    batch[4]["content"] = f"bad {POISON}"
    memory.record_many(batch)
    with poisoned(quick, tmp_path / "worker.log"):
        eventually(lambda: query(settings, VECTORS) == [(9,)], "the nine neighbours are indexed")
        eventually(
            lambda: query(settings, "SELECT attempts FROM index_tasks WHERE failed_at IS NOT NULL") == [(2,)],
            "the bad one is set aside after its last attempt",
        )
    listing = Process(["-m", "calmem_services.cli.main", "failed"], settings, tmp_path / "failed.log")
    assert listing.wait() == 0
    assert "ada-4" in listing.text()
    assert "the runtime does not like this text" in listing.text()

    again = Process(["-m", "calmem_services.cli.main", "failed", "retry", "ada-4"], settings, tmp_path / "retry.log")
    assert again.wait() == 0
    with running(["worker", "--burst"], settings, tmp_path / "burst.log") as burst:
        assert burst.wait() == 0
    assert indexed(settings, 10)


def test_a_message_that_kills_its_worker_costs_no_neighbour_its_attempts(
    memory: Memory, settings: Settings, tmp_path: Path
) -> None:
    quick = replace(settings, max_attempts=2, lease_seconds=1.0)
    batch = turns(6)
    batch[2]["content"] = f"bad {DEADLY}"
    memory.record_many(batch)

    neighbours = [(5,)]

    def run_until_it_dies() -> bool:
        with poisoned(quick, tmp_path / "worker.log") as worker:
            done = "the worker ends or the neighbours are indexed"
            eventually(lambda: not worker.running or query(settings, VECTORS) == neighbours, done)
            return worker.running

    assert any(run_until_it_dies() for _ in range(8))
    assert query(settings, VECTORS) == neighbours
    with running(["sweeper"], quick, tmp_path / "sweeper.log"), running(["worker"], quick, tmp_path / "last.log"):
        eventually(
            lambda: query(settings, "SELECT count(*) FROM index_tasks WHERE failed_at IS NULL") == [(0,)],
            "the deadly message is set aside or indexed by a worker that bears it",
        )


@pytest.mark.parametrize("what", ["message", "session", "user"])
def test_what_is_deleted_while_it_is_embedded_leaves_nothing(
    memory: Memory, settings: Settings, tmp_path: Path, what: str
) -> None:
    memory.record_many(turns(1, text=f"Secret {SLOW}"))
    memory.record_many(turns(1, "bob"))
    with poisoned(settings, tmp_path / "worker.log") as worker:
        eventually(lambda: "embedding slowly" in worker.text(), "the text is being embedded")
        if what == "message":
            removed = memory.delete_message("ada", "ada-0").removed
        elif what == "session":
            removed = memory.delete_session("ada", "ada-s").removed
        else:
            removed = memory.delete_user("ada").removed
        assert removed["messages"] == 1
        eventually(lambda: indexed(settings, 1), "bob's message is indexed")
        assert worker.running
    for table in ("messages", "index_tasks", "chunks", "vectors"):
        left = query(settings, f"SELECT count(*) FROM {table} t JOIN users u USING (user_no) WHERE u.user_id <> 'bob'")
        assert left == [(0,)], table


def test_a_bulk_import_does_not_starve_the_others(memory: Memory, settings: Settings, tmp_path: Path) -> None:
    memory.record_many(turns(400, "bulk"))
    memory.record_many(turns(3, "late"))
    late = "SELECT count(*) FROM vectors JOIN users USING (user_no) WHERE user_id = 'late'"
    small = replace(settings, claim_messages=16)
    with running(["worker"], small, tmp_path / "worker.log", ready=READY):
        eventually(lambda: query(settings, late) == [(3,)], "the late user's messages are indexed")
        done = query(settings, VECTORS)[0][0]
    assert done < 403, "before the bulk import is"


def test_a_worker_without_a_model_stops_at_once_and_takes_no_job(
    memory: Memory, settings: Settings, tmp_path: Path
) -> None:
    memory.record_many(turns(2))
    (tmp_path / "model").mkdir()
    broken = replace(settings, model_path=str(tmp_path / "model"))
    process = Process(["-m", "calmem_services.cli.main", "worker"], broken, tmp_path / "worker.log")
    assert process.wait() == 1
    said = process.text()
    assert "CALMEM_MODEL_PATH" in said
    assert "--no-deps" in said
    assert "download" in said
    assert "Traceback" not in said
    assert query(settings, "SELECT max(attempts) FROM index_tasks") == [(0,)]


def test_no_message_text_and_no_password_in_any_log(memory: Memory, settings: Settings, tmp_path: Path) -> None:
    card = "4111 1111 1111 1111"
    memory.record(user_id="ada", session_id="s", role="user", content=f"My card is {card}")
    away = replace(settings, redis_url="redis://:redis-pass-word@127.0.0.1:1/0", log_level="debug")
    logs = [tmp_path / name for name in ("worker.log", "sweeper.log")]
    with running(["worker"], away, logs[0], ready=READY), running(["sweeper"], away, logs[1]):
        eventually(lambda: indexed(settings, 1), "the message is indexed")
        eventually(lambda: "redis_away" in logs[0].read_text(), "the worker misses Redis")
    for log in logs:
        text = log.read_text()
        assert card not in text
        assert "4111" not in text
        assert "redis-pass-word" not in text
