"""The slow work beside indexing: walking over old messages for a new index, going over to it, removing a retired one.

Each step is one short transaction, so that a worker may be killed anywhere and live messages never wait for it.
"""

from __future__ import annotations

import structlog

from calmem import metrics
from calmem.model import IndexState, Lane, SearchIndex
from calmem.recording import first_chunks
from calmem.reindexing import change_places
from calmem.storage import indexes, reindexes
from calmem.storage.messages import Pending, insert_pending
from calmem.storage.pool import Connection

log = structlog.get_logger(__name__)

# One step of the walk; a step of the removal takes so many rows.
STEP_MESSAGES = 256
STEP_BYTES = 524_288
_STEP_ROWS = 1_000
# Recall does not go over by itself to an index in which more messages failed than that, beyond one.
MOST_FAILED_SHARE = 0.01


def step(conn: Connection) -> bool:
    """One step of whatever is to be done; False when a worker has to wait for others, or for nothing."""
    active, *beside = indexes.in_use(conn)
    for index in beside:
        if index.state is IndexState.BUILDING and (_walk(conn, index) or _go_over(conn, active, index)):
            return True
    return any(_remove(conn, index) for index in indexes.by_number(conn, reindexes.to_remove(conn)))


def _walk(conn: Connection, index: SearchIndex) -> bool:
    """Give the next old messages what `record` gives a new one: words that are found at once, and a task."""
    after = reindexes.lock_walk(conn, index)
    if after is None:
        return False
    found = reindexes.next_messages(conn, index.index_no, after, limit=STEP_MESSAGES, most_bytes=STEP_BYTES)
    if not found:
        reindexes.end(conn, index.index_no)
        log.info("reindex_walk_ended", index_no=index.index_no)
        return True
    pending = [
        Pending(
            user_no=old.user_no,
            session_no=old.session_no,
            message_no=old.message_no,
            seq=old.seq,
            created_at=old.created_at,
            chunks=first_chunks(old.content, old.user_key, index),
        )
        for old in found
        if old.content is not None
    ]
    insert_pending(conn, pending, index_no=index.index_no, lane=Lane.REINDEX)
    last = found[-1]
    reindexes.advance(conn, index.index_no, (last.user_no, last.message_no), by=len(found))
    return True


def _go_over(conn: Connection, active: SearchIndex, index: SearchIndex) -> bool:
    if not _ready(conn, index):
        return False
    if [(i.index_no, i.state) for i in indexes.lock_states(conn)] != [(i.index_no, i.state) for i in (active, index)]:
        return False  # somebody steered meanwhile
    if not _ready(conn, index):
        return False
    change_places(conn, active, index)
    metrics.REINDEX_SWITCHES.inc()
    log.info("reindex_switched", index_no=index.index_no, former=active.index_no)
    return True


def _ready(conn: Connection, index: SearchIndex) -> bool:
    found = reindexes.progress(conn, index)
    if not (found.complete and found.switches):
        return False
    if found.failed > max(1, MOST_FAILED_SHARE * found.messages):
        reindexes.note_problem(
            conn,
            index.index_no,
            f"{found.failed} messages failed: look at `calmem failed`, then `calmem failed retry --all` or `calmem reindex switch`",
        )
        return False
    return True


def _remove(conn: Connection, index: SearchIndex) -> bool:
    at = reindexes.lock_walk(conn, index)
    if at is None:
        return False
    user_no = reindexes.next_user(conn, at[0])
    if user_no is None:
        reindexes.end(conn, index.index_no)
        log.info("index_removed", index_no=index.index_no)
    elif reindexes.remove_rows(conn, index.index_no, user_no, limit=_STEP_ROWS):
        reindexes.advance(conn, index.index_no, (user_no, 0), by=0)
    return True
