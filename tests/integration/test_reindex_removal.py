"""An index that was given up: its rows go bit by bit, beside whoever writes or deletes at the same moment."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import psycopg
import pytest

from calmem.memory import Memory
from calmem.model import Claim, IndexState, Lane
from calmem.settings import Settings
from calmem.storage import backlog, tasks
from calmem.storage.pool import Database
from calmem_workers import reindex
from tests.support.processes import eventually
from tests.support.reindexing import PARROT, chunks, notes, record, state, steer, vectors, work

NEW = 2
TOKEN = uuid4()


def being_built(settings: Settings, directory: str) -> list[Claim]:
    """An index beside the active one of which a worker has leased two messages, the second one stored before the first."""
    record(settings, "The gate is green.", "The boat is blue.")
    work(settings)
    steer(settings, lambda r: r.start(model_path=directory, switches=False))
    with Database(settings) as database, database.connection() as conn:
        while state(settings)[1][0].done < 2 and reindex.step(conn):
            conn.commit()
        claims = tasks.claim_fresh(
            conn, lane=Lane.REINDEX, index_no=NEW, limit=2, lease_seconds=60, token=TOKEN, from_user=0
        )
    assert len(claims) == 2
    with psycopg.connect(settings.database_url) as plain:
        touch = "UPDATE index_tasks SET not_before = now() WHERE message_no = %s AND index_no = %s"
        plain.execute(touch, (claims[0].message_no, NEW))
        stored = plain.execute("SELECT message_no FROM index_tasks WHERE index_no = %s ORDER BY ctid", (NEW,))
        assert [no for (no,) in stored] == [claims[1].message_no, claims[0].message_no]
    return claims


def give_up(settings: Settings) -> None:
    steer(settings, lambda r: r.cancel())
    with Database(settings) as database:
        more = True
        while more:
            with database.connection() as conn:
                more = reindex.step(conn)


def writes(settings: Settings, claims: list[Claim]) -> None:
    with Database(settings) as database, database.connection() as conn:
        tasks.finish(conn, token=TOKEN, index_no=NEW, results=[(claim, []) for claim in claims])


def deletes(settings: Settings, _claims: list[Claim]) -> None:
    with Memory(settings=settings) as memory:
        memory.delete_session("ada", "ada-1")


@pytest.mark.parametrize("beside", [writes, deletes])
def test_giving_up_an_index_and_writing_or_deleting_in_it_do_not_wait_for_each_other_in_a_circle(
    settings: Settings, tiny: str, beside: Callable[[Settings, list[Claim]], None]
) -> None:
    claims = being_built(settings, tiny)
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with (
        ThreadPoolExecutor(2) as threads,
        psycopg.connect(settings.database_url, autocommit=True) as watcher,
        psycopg.connect(settings.database_url) as holder,
    ):

        def waiting(count: int) -> bool:
            return watcher.execute(waits).fetchone() == (count,)

        hold = "SELECT 1 FROM index_tasks WHERE message_no = %s AND index_no = %s FOR UPDATE"
        holder.execute(hold, (claims[1].message_no, NEW))
        given_up = threads.submit(give_up, settings)
        eventually(lambda: waiting(1), "the removal waits for the task that is held")
        other = threads.submit(beside, settings, claims)
        eventually(lambda: waiting(2), "so does the other, or for the removal")
        holder.commit()
        other.result()
        given_up.result()
    assert state(settings)[1] == []
    with psycopg.connect(settings.database_url) as conn:
        assert conn.execute("SELECT count(*) FROM index_tasks").fetchone() == (0,)
    assert NEW not in chunks(settings)


def test_until_its_tasks_are_removed_nobody_sees_them_or_writes_for_them(settings: Settings, tiny: str) -> None:
    claims = being_built(settings, tiny)
    steer(settings, lambda r: r.pause())
    with psycopg.connect(settings.database_url) as plain:
        plain.execute(
            "UPDATE index_tasks SET failed_at = now(), error = 'no', attempts = 5, lease_token = NULL, lease_until = NULL"
            " WHERE message_no = %s",
            (claims[0].message_no,),
        )
    with Database(settings) as database:
        with database.connection() as conn:
            assert len(tasks.list_failed(conn, limit=10)) == backlog.queue_state(conn).failed == 1
        steer(settings, lambda r: r.cancel())
        with database.connection() as conn:
            assert tasks.list_failed(conn, limit=10) == []
            assert tasks.retry_failed(conn, message_id=None) == (0, set())
            found = backlog.queue_state(conn)
            assert (found.failed, found.leased, found.pending_by_lane[Lane.REINDEX]) == (0, 0, 0)
        ((removed,),) = [state(settings)[1]]
        assert (removed.index.state, removed.failed) == (IndexState.RETIRED, 0)
        work(settings)
        with database.connection() as conn:
            assert tasks.finish(conn, token=TOKEN, index_no=NEW, results=[(claim, []) for claim in claims]) == 0
            assert conn.execute("SELECT count(*) FROM index_tasks").fetchone() == (0,)
    assert (chunks(settings), vectors(settings)) == ({1: 2}, {(1, 384): 2})


def test_cancel_removes_the_new_index_and_touches_nothing_else(
    settings: Settings, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reindex, "_STEP_ROWS", 2)
    for user in ("ada", "bob"):
        record(settings, *notes(5), user=user)
    work(settings)
    with psycopg.connect(settings.database_url) as conn:
        before = conn.execute("SELECT user_id, vectors_removed FROM users ORDER BY 1").fetchall()
    steer(settings, lambda r: r.start(model_path=tiny, switches=False))
    work(settings)
    assert vectors(settings) == {(1, 384): 10, (2, 128): 10}
    steer(settings, lambda r: r.pause())
    steer(settings, lambda r: r.cancel())
    assert [one.index.state for one in state(settings)[1]] == [IndexState.RETIRED]
    record(settings, PARROT)
    work(settings)
    assert state(settings)[1] == []
    assert (chunks(settings), vectors(settings)) == ({1: 11}, {(1, 384): 11})
    with psycopg.connect(settings.database_url) as conn:
        assert conn.execute("SELECT index_no, vectors FROM index_sizes ORDER BY 2").fetchall() == [(1, 5), (1, 6)]
        assert conn.execute("SELECT user_id, vectors_removed FROM users ORDER BY 1").fetchall() == before
    again = steer(settings, lambda r: r.start(model_path=tiny))
    work(settings)
    assert state(settings)[0].index_no == again.index.index_no == 3
