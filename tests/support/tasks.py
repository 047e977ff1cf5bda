"""Messages that wait for their vectors, and workers that claim them."""

from __future__ import annotations

from uuid import UUID, uuid4

from calmem.memory import Memory
from calmem.model import Claim, Lane
from calmem.storage import indexes, tasks
from calmem.storage.pool import Connection, Database
from tests.support.rows import record_lines

LEASE = 60.0
MOST = 5


def record(memory: Memory, count: int, *, user: str = "ada", lane: Lane = Lane.LIVE, text: str = "Turn") -> list[str]:
    """`count` messages of the user in one session; their ids."""
    return record_lines(memory, (f"{text} number {n}." for n in range(count)), user=user, lane=lane)


def index_no(conn: Connection) -> int:
    return indexes.active_index(conn).index_no


def fresh(
    database: Database,
    *,
    limit: int = 64,
    lease: float = LEASE,
    token: UUID | None = None,
    lane: Lane = Lane.LIVE,
    from_user: int = 0,
) -> list[Claim]:
    with database.connection() as conn:
        return tasks.claim_fresh(
            conn,
            lane=lane,
            index_no=index_no(conn),
            limit=limit,
            lease_seconds=lease,
            token=token or uuid4(),
            from_user=from_user,
        )


def suspect(database: Database, *, lease: float = LEASE, token: UUID | None = None, most: int = MOST) -> list[Claim]:
    with database.connection() as conn:
        return tasks.claim_suspect(
            conn,
            lane=Lane.LIVE,
            index_no=index_no(conn),
            lease_seconds=lease,
            token=token or uuid4(),
            max_attempts=most,
        )


def fail(database: Database, token: UUID, claim: Claim) -> bool:
    with database.connection() as conn:
        return tasks.fail(conn, token=token, claim=claim, error="ValueError: no", max_attempts=MOST)
