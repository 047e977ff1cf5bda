"""Nothing is lost and nothing is doubled: real workers and a real sweeper, stopped, killed and cut off."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
import redis

from calmem.errors import TransientError
from calmem.memory import Memory
from calmem.model import Lane
from calmem.settings import Settings
from calmem_services.local.postgres import EmbeddedPostgres
from calmem_services.local.redis import EmbeddedRedis
from tests.support.processes import Process, eventually, running
from tests.support.reindexing import steer
from tests.support.rows import count, execute
from tests.support.workers import READY, indexed_exactly_once, record, say

DERIVED = ("index_tasks", "chunks", "vectors")


@contextmanager
def odd_worker(settings: Settings, log: Path, *, gate: Path | None = None) -> Iterator[Process]:
    """A worker whose embedder misbehaves on purpose; see tests/support/odd_worker.py."""
    arguments = ["-m", "tests.support.odd_worker", *(["--gate", str(gate)] if gate else [])]
    process = Process(arguments, settings, log)
    try:
        eventually(lambda: READY in process.text() or not process.running, "the odd worker is ready")
        assert process.running, process.text()
        yield process
    finally:
        process.kill()


def test_recorded_while_redis_was_down(
    memory: Memory, settings: Settings, redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    redis_server.stop()
    ids = [say(memory, f"Said without Redis, number {number}.") for number in range(20)]
    assert len(set(ids)) == count(settings, "messages") == 20

    redis_server.start()
    with running(["worker"], settings, tmp_path / "worker.log", ready=READY):
        eventually(lambda: indexed_exactly_once(settings, 20), "all 20 indexed")


def test_indexing_goes_on_without_redis_and_the_worker_stops_when_told(
    memory: Memory, settings: Settings, redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    with running(["worker"], settings, tmp_path / "worker.log", ready=READY) as worker:
        redis_server.stop()
        record(memory, 5)
        eventually(lambda: indexed_exactly_once(settings, 5), "5 indexed without Redis")
        assert worker.stop() == 0


def test_a_worker_takes_wake_ups_again_after_redis_came_back(
    memory: Memory, settings: Settings, redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    client = redis.Redis.from_url(settings.redis_url)
    with running(["worker"], settings, tmp_path / "worker.log", ready=READY) as worker:
        eventually(lambda: client.scard("rq:workers") == 1, "the worker has registered")
        redis_server.stop()
        redis_server.start()
        say(memory, "Said after the restart.")
        eventually(lambda: indexed_exactly_once(settings, 1), "indexed after the restart")
        eventually(lambda: client.llen("rq:queue:calmem-live") == 0, "the wake-up was taken")
        assert worker.running
    client.close()


def test_redis_flushed(memory: Memory, settings: Settings, tmp_path: Path) -> None:
    record(memory, 100)
    with redis.Redis.from_url(settings.redis_url) as client:
        client.flushall()

    with (
        running(["worker"], settings, tmp_path / "worker.log", ready=READY),
        running(["sweeper"], settings, tmp_path / "sweeper.log"),
    ):
        eventually(lambda: indexed_exactly_once(settings, 100), "all 100 indexed")


def test_the_sweeper_wakes_workers_for_what_was_forgotten(memory: Memory, settings: Settings, tmp_path: Path) -> None:
    record(memory, 3)
    record(memory, 3, lane=Lane.BACKFILL)
    steer(settings, lambda r: r.start(chunk_chars=500, overlap_chars=100))
    with redis.Redis.from_url(settings.redis_url) as client:
        client.flushall()
        with running(["sweeper"], settings, tmp_path / "sweeper.log"):
            queues = [f"rq:queue:calmem-{lane}" for lane in Lane]
            eventually(lambda: [client.llen(queue) for queue in queues] == [1, 1, 1], "a wake-up in each lane")


def test_a_worker_killed_in_the_middle_of_a_batch(memory: Memory, settings: Settings, tmp_path: Path) -> None:
    record(memory, 64, words=150)
    first = Process(["-m", "calmem_services.cli.main", "worker"], settings, tmp_path / "first.log")
    eventually(lambda: count(settings, "index_tasks WHERE lease_token IS NOT NULL") == 64, "64 leased")
    first.kill()
    assert count(settings, "index_tasks WHERE attempts = 1") == 64

    with running(["worker"], settings, tmp_path / "second.log", ready=READY):
        eventually(lambda: indexed_exactly_once(settings, 64), "the other worker indexed all 64")


def test_a_stop_finishes_the_batch(memory: Memory, settings: Settings, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    record(memory, 10)
    with odd_worker(settings, tmp_path / "worker.log", gate=gate) as worker:
        eventually(gate.with_suffix(".waiting").exists, "a batch is being embedded")
        os.kill(worker.pid, signal.SIGTERM)
        gate.touch()
        assert worker.wait() == 0

    assert indexed_exactly_once(settings, 10)


def test_postgres_restarted_under_a_worker(
    memory: Memory, settings: Settings, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    """Once between two messages, once for longer than the lease while a batch is being embedded."""
    gate = tmp_path / "gate"
    gate.touch()
    with odd_worker(settings, tmp_path / "worker.log", gate=gate) as worker:
        say(memory, "Said before the restart.")
        eventually(lambda: indexed_exactly_once(settings, 1), "indexed before")
        postgres.restart()
        eventually(lambda: recorded(memory, "Said after the restart."), "recording works again")
        eventually(lambda: indexed_exactly_once(settings, 2), "indexed after")

        gate.unlink()
        gate.with_suffix(".waiting").unlink()
        record(memory, 30)
        eventually(gate.with_suffix(".waiting").exists, "a batch is being embedded")
        attempts = execute(settings, "SELECT DISTINCT attempts FROM index_tasks WHERE lease_token IS NOT NULL")
        postgres.pause()
        try:
            gate.touch()
            eventually(lambda: "database_away" in worker.text(), "the worker noticed the outage")
        finally:
            postgres.resume()
        eventually(lambda: indexed_exactly_once(settings, 32), "the kept batch was written")
        assert attempts == [(1,)]
        assert worker.running
        assert "message_not_indexed" not in worker.text()


def recorded(memory: Memory, content: str) -> bool:
    try:
        memory.record(user_id="ada", session_id="ada-1", role="user", content=content, message_id=content)
    except TransientError:
        return False
    return True


def test_outages_use_up_no_attempts(
    memory: Memory,
    settings: Settings,
    postgres: EmbeddedPostgres,
    redis_server: EmbeddedRedis,
    tmp_path: Path,
) -> None:
    """With one attempt in all, a single one spent on an outage would set the messages aside."""
    strict = replace(settings, max_attempts=1, lease_seconds=60.0)
    gate = tmp_path / "gate"
    record(memory, 10)
    with (
        odd_worker(strict, tmp_path / "worker.log", gate=gate) as worker,
        running(["sweeper"], strict, tmp_path / "sweeper.log"),
    ):
        eventually(gate.with_suffix(".waiting").exists, "a batch is being embedded")
        redis_server.stop()
        postgres.pause()
        try:
            gate.touch()
            eventually(lambda: "database_away" in worker.text(), "the worker noticed the outage")
        finally:
            postgres.resume()
        redis_server.start()
        eventually(lambda: indexed_exactly_once(strict, 10), "all indexed in their only attempt")


@pytest.mark.parametrize("bad", ["POISON", "NAN", "UNCOUNTABLE"])
def test_a_poison_message_is_set_aside_alone(memory: Memory, settings: Settings, tmp_path: Path, bad: str) -> None:
    """The model raises, its vector is no number, or its tokenizer raises: the odd worker plays each."""
    record(memory, 9)
    poison = say(memory, f"This one is {bad}.")
    with odd_worker(settings, tmp_path / "worker.log") as worker:
        eventually(lambda: count(settings, "index_tasks") == 1, "the neighbours are indexed")
        assert count(settings, "vectors") == 9
        eventually(lambda: hurry(settings), "set aside")
        assert worker.running

        (failed,) = listed_as_failed(settings, tmp_path)
        assert failed["message_id"] == poison
        assert failed["attempts"] == settings.max_attempts
        assert "Error" in str(failed["error"]) or "Exception" in str(failed["error"]), failed["error"]
        assert bad not in worker.text(), "message text in the log"


def hurry(settings: Settings) -> bool:
    """Let every pause after a failure pass now; true when something was set aside."""
    with psycopg.connect(settings.database_url) as conn:
        conn.execute("UPDATE index_tasks SET not_before = now() WHERE lease_token IS NULL AND failed_at IS NULL")
    return count(settings, "index_tasks WHERE failed_at IS NOT NULL") == 1


def listed_as_failed(settings: Settings, tmp_path: Path) -> list[dict[str, object]]:
    """What `calmem failed --json` prints."""
    process = Process(["-m", "calmem_services.cli.main", "failed", "--json"], settings, tmp_path / "failed.log")
    assert process.wait() == 0, process.text()
    answer = json.loads(process.text())
    assert isinstance(answer, list)
    return answer


def test_a_message_that_kills_its_worker_takes_no_neighbour_along(
    memory: Memory, settings: Settings, tmp_path: Path
) -> None:
    quick = replace(settings, lease_seconds=0.5, max_attempts=3)
    record(memory, 9)
    deadly = say(memory, "This one is DEADLY.")
    with running(["sweeper"], quick, tmp_path / "sweeper.log"):
        for number in range(20):  # what a supervisor does
            if count(quick, "index_tasks WHERE failed_at IS NULL") == 0:
                break
            work_until_death(quick, tmp_path / f"worker{number}.log")
        assert count(quick, "vectors") == 9
        eventually(lambda: count(quick, "index_tasks WHERE failed_at IS NOT NULL") == 1, "set aside by the sweeper")
    (failed,) = listed_as_failed(quick, tmp_path)
    assert failed["message_id"] == deadly
    assert "worker died" in str(failed["error"])


def work_until_death(settings: Settings, log: Path) -> None:
    """A worker for as long as it lives and there is work."""
    worker = Process(["-m", "tests.support.odd_worker"], settings, log)
    try:
        eventually(
            lambda: not worker.running or count(settings, "index_tasks WHERE failed_at IS NULL") == 0,
            "the worker died or all is done",
        )
    finally:
        worker.kill()


@pytest.mark.parametrize("what", ["message", "session", "user"])
def test_deleted_while_it_is_being_embedded(memory: Memory, settings: Settings, tmp_path: Path, what: str) -> None:
    gate = tmp_path / "gate"
    ids = record(memory, 5)
    record(memory, 5, user="bob")
    with odd_worker(settings, tmp_path / "worker.log", gate=gate):
        eventually(gate.with_suffix(".waiting").exists, "the batch is being embedded")
        if what == "message":
            memory.delete_message("ada", ids[2])
        elif what == "session":
            memory.delete_session("ada", "ada-1")
        else:
            memory.delete_user("ada")
        gate.touch()
        eventually(lambda: count(settings, "index_tasks") == 0, "the batch is done")

    left = 4 if what == "message" else 0
    assert owners(settings, "messages") == {"ada": left, "bob": 5}
    for table in DERIVED[1:]:
        assert owners(settings, table) == {"ada": left, "bob": 5}, table
    assert count(settings, "chunks WHERE message_no NOT IN (SELECT message_no FROM messages)") == 0
    assert count(settings, "vectors WHERE chunk_no NOT IN (SELECT chunk_no FROM chunks)") == 0
    assert everything_said_by(settings, "ada") == left


def owners(settings: Settings, table: str) -> dict[str, int]:
    found = execute(settings, f"SELECT user_id, count(*) FROM {table} JOIN users USING (user_no) GROUP BY user_id")
    orphans = count(settings, f"{table} WHERE user_no NOT IN (SELECT user_no FROM users)")
    assert orphans == 0
    return {"ada": 0, "bob": 0} | {str(user): int(str(number)) for user, number in found}


def everything_said_by(settings: Settings, user: str) -> int:
    """Messages of the user that any table still names: every table with a message_no is asked."""
    tables = execute(
        settings,
        "SELECT table_name FROM information_schema.columns WHERE column_name = 'message_no' AND table_schema = 'public'",
    )
    named = " UNION ".join(f"SELECT user_no, message_no FROM {table}" for (table,) in tables)
    return count(settings, f"({named}) AS n JOIN users USING (user_no) WHERE user_id = '{user}'")


def test_a_missing_model_is_one_clear_error_before_any_job(memory: Memory, settings: Settings, tmp_path: Path) -> None:
    record(memory, 1)
    empty = tmp_path / "empty"
    empty.mkdir()
    worker = Process(
        ["-m", "calmem_services.cli.main", "worker"],
        replace(settings, model_path=str(empty)),
        tmp_path / "worker.log",
    )
    assert worker.wait() != 0
    assert "CALMEM_MODEL_PATH" in worker.text()
    assert "Traceback" not in worker.text()
    assert execute(settings, "SELECT attempts, lease_token FROM index_tasks") == [(0, None)]


def test_another_model_under_the_same_name_is_refused(memory: Memory, settings: Settings, tmp_path: Path) -> None:
    record(memory, 1)
    with psycopg.connect(settings.database_url) as conn:  # what another model would have left there
        conn.execute("UPDATE search_indexes SET dimension = 384, probe = ('[1' || repeat(',0', 383) || ']')::halfvec")
    worker = Process(["-m", "calmem_services.cli.main", "worker"], settings, tmp_path / "worker.log")
    assert worker.wait() != 0
    assert "vectors differ" in worker.text()
    assert "Traceback" not in worker.text()
    assert execute(settings, "SELECT attempts FROM index_tasks") == [(0,)]


def test_no_log_holds_text_or_passwords(
    memory: Memory, settings: Settings, redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    password = settings.redis_url.replace("redis://", "redis://:hunter2@")
    secret = replace(settings, redis_url=password, max_attempts=50)
    redis_server.stop()
    say(memory, "My card is 4111 1111 1111 1111, POISON.")
    with (
        odd_worker(secret, tmp_path / "worker.log") as worker,
        running(["sweeper"], secret, tmp_path / "sweeper.log") as sweeper,
    ):
        eventually(lambda: "message_not_indexed" in worker.text(), "the failure was logged")
        eventually(lambda: "wakeup_lost" in sweeper.text(), "the sweeper met no Redis")
        for text in (worker.text(), sweeper.text()):
            assert "4111" not in text
            assert "hunter2" not in text
            assert settings.database_url not in text
