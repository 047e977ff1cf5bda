"""Attempts that ended in an error: tried again later, set aside at last, given new attempts."""

from __future__ import annotations

from uuid import uuid4

from calmem.memory import Memory
from calmem.model import Lane
from calmem.settings import Settings
from calmem.storage import backlog, tasks
from calmem.storage.pool import Database
from tests.support.rows import execute
from tests.support.tasks import MOST, fail, fresh, record, suspect


def due_now(settings: Settings) -> None:
    """Let the pause after a failure pass."""
    execute(settings, "UPDATE index_tasks SET not_before = now()")


def test_a_failure_comes_back_later_and_is_set_aside_at_last(
    memory: Memory, database: Database, settings: Settings
) -> None:
    (message_id,) = record(memory, 1)
    token = uuid4()
    (claim,) = fresh(database, token=token)
    assert fail(database, token, claim) is False
    assert suspect(database) == [], "claimed before its pause was over"
    assert execute(settings, "SELECT not_before - now() BETWEEN '1 s' AND '2 s' FROM index_tasks") == [(True,)]
    for attempt in range(2, MOST + 1):
        due_now(settings)
        token = uuid4()
        (claim,) = suspect(database, token=token)
        assert claim.attempts == attempt
        assert fail(database, token, claim) is (attempt == MOST)

    due_now(settings)
    assert suspect(database) == []
    with database.connection() as conn:
        ((_, failed),) = tasks.list_failed(conn, limit=10)
        state = backlog.queue_state(conn)
    assert (failed.message_id, failed.user_id, failed.session_id) == (message_id, "ada", "ada-1")
    assert (failed.attempts, failed.error) == (MOST, "ValueError: no")
    assert (state.pending, state.failed, state.oldest_seconds) == (0, 1, 0.0)


def set_aside(database: Database) -> int:
    with database.connection() as conn:
        return tasks.set_aside_dead(conn, max_attempts=MOST)


def test_what_killed_its_worker_each_time_is_set_aside(memory: Memory, database: Database, settings: Settings) -> None:
    record(memory, 2)
    fresh(database, lease=0.0)
    execute(
        settings,
        f"UPDATE index_tasks SET attempts = {MOST - 1} WHERE message_no = (SELECT min(message_no) FROM messages)",
    )
    assert set_aside(database) == 0
    execute(settings, f"UPDATE index_tasks SET attempts = {MOST} WHERE attempts = {MOST - 1}")

    assert suspect(database) != []
    assert set_aside(database) == 1
    assert set_aside(database) == 0
    with database.connection() as conn:
        ((_, failed),) = tasks.list_failed(conn, limit=10)
    assert "worker died" in failed.error


def test_a_living_lease_is_not_set_aside(memory: Memory, database: Database, settings: Settings) -> None:
    record(memory, 1)
    fresh(database)
    execute(settings, f"UPDATE index_tasks SET attempts = {MOST}")

    assert set_aside(database) == 0


def test_retry_gives_the_attempts_back(memory: Memory, database: Database, settings: Settings) -> None:
    ids = record(memory, 3)
    record(memory, 1, user="bob")
    fresh(database, lease=0.0)
    execute(
        settings,
        f"UPDATE index_tasks SET attempts = {MOST} WHERE user_no = (SELECT user_no FROM users WHERE user_id = 'ada')",
    )
    set_aside(database)

    with database.connection() as conn:
        assert tasks.retry_failed(conn, message_id="unknown") == (0, set())
        assert tasks.retry_failed(conn, message_id=ids[1]) == (1, {Lane.LIVE})
        assert len(tasks.list_failed(conn, limit=10)) == 2
        assert tasks.retry_failed(conn, message_id=None) == (2, {Lane.LIVE})
        assert tasks.list_failed(conn, limit=10) == []
        assert backlog.queue_state(conn).pending == 4
    claims = [claim for _ in range(4) for claim in suspect(database)]
    assert [claim.attempts for claim in claims] == [2, 2, 2, 2]
