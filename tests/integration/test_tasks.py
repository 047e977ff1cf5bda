"""Tasks in a real Postgres: who is claimed, by whom, for how long, and what is written at the end."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID, uuid4

import numpy as np
import psycopg
import pytest

from calmem.memory import Memory
from calmem.model import Claim, Lane, NewChunk, Span
from calmem.settings import Settings
from calmem.storage import backlog, tasks
from calmem.storage.pool import Database
from tests.support.processes import eventually
from tests.support.rows import count, execute
from tests.support.tasks import LEASE, fail, fresh, index_no, record, suspect


def finish(database: Database, token: UUID, results: Sequence[tuple[Claim, Sequence[NewChunk]]]) -> int:
    with database.connection() as conn:
        return tasks.finish(conn, token=token, index_no=index_no(conn), results=results)


def whole(claim: Claim) -> list[NewChunk]:
    """The message as one chunk, with the span that `record` gave it and some vector."""
    return [NewChunk(span=Span(start=0, end=claim.size), tokens=[7], vector=np.full(4, 0.5, dtype=np.float32))]


def test_a_message_is_leased_to_one_worker(memory: Memory, database: Database) -> None:
    record(memory, 40)
    with ThreadPoolExecutor(4) as threads:
        claims = list(threads.map(lambda _: fresh(database, limit=10), range(4)))

    numbers = [claim.message_no for batch in claims for claim in batch]
    assert len(numbers) == len(set(numbers)) == 40
    assert fresh(database) == []
    assert suspect(database) == []


def test_the_attempt_counts_from_the_claim(memory: Memory, database: Database, settings: Settings) -> None:
    record(memory, 1)

    (claim,) = fresh(database)

    assert claim.attempts == 1
    assert execute(settings, "SELECT attempts, lease_token IS NULL FROM index_tasks") == [(1, False)]


def test_a_lane_is_claimed_by_itself(memory: Memory, database: Database) -> None:
    record(memory, 2, lane=Lane.BACKFILL)
    record(memory, 1, user="bob")

    assert len(fresh(database, lane=Lane.LIVE)) == 1
    assert len(fresh(database, lane=Lane.BACKFILL)) == 2


def test_a_bulk_import_does_not_starve_the_others(memory: Memory, database: Database) -> None:
    record(memory, 500, user="importer")
    for user in ("ann", "ben", "cem"):
        record(memory, 2, user=user)

    claims = fresh(database, limit=64)

    owners = [claim.user_no for claim in claims]
    assert len(set(owners)) == 4
    assert sorted(owners.count(user) for user in set(owners)) == [2, 2, 2, 16]


def test_more_users_than_places_take_turns(memory: Memory, database: Database) -> None:
    for number in range(6):
        record(memory, 2, user=f"user{number}")

    first = fresh(database, limit=3)
    then = fresh(database, limit=3, from_user=max(claim.user_no for claim in first) + 1)

    assert len({claim.user_no for claim in first + then}) == 6


def test_an_expired_lease_is_taken_over_one_at_a_time(memory: Memory, database: Database) -> None:
    record(memory, 3)
    fresh(database, lease=0.0)

    assert fresh(database) == []
    taken = [suspect(database) for _ in range(4)]
    assert [len(claims) for claims in taken] == [1, 1, 1, 0]
    assert [claims[0].attempts for claims in taken[:3]] == [2, 2, 2]


def test_a_renewed_lease_stays(memory: Memory, database: Database) -> None:
    record(memory, 1)
    token = uuid4()
    fresh(database, token=token, lease=0.0)

    with database.connection() as conn:
        tasks.renew(conn, token=token, lease_seconds=LEASE)

    assert suspect(database) == []


def test_given_back_means_never_taken(memory: Memory, database: Database, settings: Settings) -> None:
    record(memory, 3)
    token = uuid4()
    fresh(database, token=token)

    with database.connection() as conn:
        assert tasks.give_back(conn, token=token) == 3

    assert execute(settings, "SELECT DISTINCT attempts, lease_until FROM index_tasks") == [(0, None)]
    assert [claim.attempts for claim in fresh(database)] == [1, 1, 1]


def test_finish_keeps_the_chunks_that_record_wrote(memory: Memory, database: Database, settings: Settings) -> None:
    record(memory, 5)
    before = execute(settings, "SELECT chunk_no, tokens FROM chunks ORDER BY chunk_no")
    token = uuid4()
    claims = fresh(database, token=token)
    with database.connection() as conn:
        loaded = tasks.load_unindexed(conn, claims, index_no=1)
    vector = np.full(4, 0.5, dtype=np.float32)
    stored = [
        (claim, [NewChunk(span=span, chunk_no=no, vector=vector) for no, span in loaded[claim.message_no].chunks])
        for claim in claims
    ]

    assert finish(database, token, stored) == 5

    assert execute(settings, "SELECT chunk_no, tokens FROM chunks ORDER BY chunk_no") == before
    assert count(settings, "index_tasks") == 0
    assert execute(settings, "SELECT chunk_no FROM vectors ORDER BY chunk_no") == [(row[0],) for row in before]


def test_finish_replaces_chunks_of_other_spans(memory: Memory, database: Database, settings: Settings) -> None:
    record(memory, 2)
    token = uuid4()
    one, two = fresh(database, token=token)
    vectors = np.eye(3, dtype=np.float32)
    pieces = [
        NewChunk(span=Span(start=start, end=start + 4), tokens=[start], vector=vectors[place])
        for place, start in enumerate((0, 4, 8))
    ]

    assert finish(database, token, [(one, pieces), (two, whole(two))]) == 2

    rows = execute(
        settings,
        f"""SELECT start_char, end_char, tokens, seq, embedding::text FROM chunks JOIN vectors USING (user_no, index_no, chunk_no)
            WHERE message_no = {one.message_no} ORDER BY start_char""",
    )
    assert rows == [(0, 4, [0], 1, "[1,0,0]"), (4, 8, [4], 1, "[0,1,0]"), (8, 12, [8], 1, "[0,0,1]")]
    assert count(settings, "chunks") == count(settings, "vectors") == 4


def test_a_message_without_chunks_leaves_nothing_behind(memory: Memory, database: Database, settings: Settings) -> None:
    record(memory, 1)
    token = uuid4()
    (claim,) = fresh(database, token=token)

    assert finish(database, token, [(claim, [])]) == 1

    assert [count(settings, table) for table in ("index_tasks", "chunks", "vectors")] == [0, 0, 0]


def test_a_lost_lease_writes_nothing(memory: Memory, database: Database, settings: Settings) -> None:
    record(memory, 1)
    slow, quick = uuid4(), uuid4()
    (lost,) = fresh(database, token=slow, lease=0.0)
    (held,) = suspect(database, token=quick)

    assert finish(database, slow, [(lost, whole(lost))]) == 0
    assert fail(database, slow, lost) is False
    assert count(settings, "vectors") == 0
    assert finish(database, quick, [(held, whole(held))]) == 1
    assert finish(database, quick, [(held, whole(held))]) == 0
    assert count(settings, "vectors") == 1


def test_what_was_deleted_meanwhile_is_skipped(memory: Memory, database: Database, settings: Settings) -> None:
    ids = record(memory, 3)
    token = uuid4()
    claims = fresh(database, token=token)
    memory.delete_message("ada", ids[1])

    assert finish(database, token, [(claim, whole(claim)) for claim in claims]) == 2

    assert [count(settings, table) for table in ("messages", "index_tasks", "chunks", "vectors")] == [2, 0, 2, 2]


def waiting(settings: Settings) -> bool:
    return count(settings, "pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()") > 0


def test_finish_waits_for_a_deletion_and_writes_nothing_of_it(
    memory: Memory, database: Database, settings: Settings
) -> None:
    ids = record(memory, 3)
    token = uuid4()
    claims = fresh(database, token=token)
    with ThreadPoolExecutor(1) as threads:
        with psycopg.connect(settings.database_url) as deleter:
            deleter.execute("SELECT 1 FROM messages WHERE message_id = %s FOR UPDATE", (ids[0],))
            written = threads.submit(finish, database, token, [(claim, whole(claim)) for claim in claims])
            eventually(lambda: waiting(settings), "finish waits for the deletion")
            deleter.execute("DELETE FROM messages WHERE message_id = %s", (ids[0],))
        assert written.result() == 2

    assert [count(settings, table) for table in ("messages", "index_tasks", "chunks", "vectors")] == [2, 0, 2, 2]


@pytest.mark.parametrize("what", ["user", "session", "message"])
def test_a_deletion_waits_for_finish_and_removes_what_it_wrote(
    memory: Memory, database: Database, settings: Settings, what: str
) -> None:
    (message_id,) = record(memory, 1)
    token = uuid4()
    claims = fresh(database, token=token)
    delete = {
        "user": lambda: memory.delete_user("ada"),
        "session": lambda: memory.delete_session("ada", "ada-1"),
        "message": lambda: memory.delete_message("ada", message_id),
    }[what]
    with ThreadPoolExecutor(1) as threads:
        with database.connection() as conn:
            tasks.finish(
                conn, token=token, index_no=index_no(conn), results=[(claim, whole(claim)) for claim in claims]
            )
            receipt = threads.submit(delete)
            eventually(lambda: waiting(settings), "the deletion waits for finish")
        removed = receipt.result().removed

    assert [removed[kind] for kind in ("messages", "chunks", "vectors")] == [1, 1, 1]
    assert [count(settings, table) for table in ("messages", "index_tasks", "chunks", "vectors")] == [0, 0, 0, 0]


def test_renewing_never_waits_for_a_deletion(memory: Memory, database: Database, settings: Settings) -> None:
    ids = record(memory, 2)
    token = uuid4()
    fresh(database, token=token, lease=0.0)
    with psycopg.connect(settings.database_url) as deleter:
        deleter.execute("DELETE FROM messages WHERE message_id = %s", (ids[0],))
        with database.connection() as conn:
            conn.execute("SET LOCAL lock_timeout = '1s'")
            tasks.renew(conn, token=token, lease_seconds=LEASE)

    assert execute(settings, "SELECT lease_until > now() FROM index_tasks") == [(True,)]


def test_the_queue_state_counts_by_lane_and_by_age(memory: Memory, database: Database, settings: Settings) -> None:
    with database.connection() as conn:
        empty = backlog.queue_state(conn)
    record(memory, 3)
    record(memory, 2, lane=Lane.BACKFILL)
    fresh(database, limit=1)
    execute(settings, "UPDATE index_tasks SET created_at = now() - interval '10 minutes' WHERE lane = 'backfill'")

    with database.connection() as conn:
        state = backlog.queue_state(conn)

    assert (empty.pending, empty.leased, empty.failed, empty.oldest_seconds) == (0, 0, 0, 0.0)
    assert (state.pending, state.leased, state.failed) == (5, 1, 0)
    assert state.pending_by_lane == {Lane.LIVE: 3, Lane.BACKFILL: 2, Lane.REINDEX: 0}
    assert 600 <= state.oldest_seconds == state.age_by_lane[Lane.BACKFILL] < 660
    assert 0 < state.live_seconds == state.age_by_lane[Lane.LIVE] < 600
