"""Rows of index_walks: how far an index has come that is being built beside the active one, or removed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from calmem.model import IndexState, Lane, Reindex, SearchIndex
from calmem.storage import indexes
from calmem.storage.pool import Connection

_COUNT = "SELECT count(*) FROM messages"
_BEGIN = "INSERT INTO index_walks (index_no, messages, switches) VALUES (%s, %s, %s)"


def count_messages(conn: Connection) -> int:
    """How far a walk has to go; reads the whole index, which takes a while."""
    row = conn.execute(_COUNT).fetchone()
    return 0 if row is None else int(row[0])


def begin(conn: Connection, index_no: int, *, messages: int, switches: bool) -> None:
    """The walk over everything that is there. The caller holds `indexes.lock_alone`, so nothing falls between."""
    conn.execute(_BEGIN, (index_no, messages, switches))


# Until the walk's end some messages have no task yet. After it an index is complete when nothing is left to embed that
# the active one has; what was recorded a moment ago and waits in both makes no difference to recall.
_PROGRESS = """
SELECT w.messages, w.walked, w.ended_at IS NOT NULL, w.switches, w.done_before, w.problem,
       extract(epoch FROM clock_timestamp() - w.going_since)::float8,
       (SELECT count(*) FROM index_tasks t WHERE t.index_no = w.index_no AND t.lane = %(lane)s AND t.failed_at IS NULL),
       (SELECT count(*) FROM index_tasks t WHERE t.index_no = w.index_no AND t.failed_at IS NOT NULL),
       NOT EXISTS (SELECT 1 FROM index_tasks t WHERE t.index_no = w.index_no AND t.failed_at IS NULL AND NOT EXISTS (
           SELECT 1 FROM index_tasks a WHERE a.user_no = t.user_no AND a.message_no = t.message_no
           AND a.index_no = (SELECT index_no FROM search_indexes WHERE state = 'active')))
FROM index_walks w WHERE w.index_no = %(index_no)s
"""


def progress(conn: Connection, index: SearchIndex) -> Reindex:
    """Of an index that is not the active one. One that was never walked for (the first) is complete."""
    row = conn.execute(_PROGRESS, {"index_no": index.index_no, "lane": Lane.REINDEX}).fetchone()
    if row is None:
        row = (0, 0, True, False, 0, None, 0.0, 0, 0, True)
    counted, walked, ended, switches, before, problem, seconds, waiting, failed, settled = row
    messages = max(counted, walked)
    retired = index.state is IndexState.RETIRED
    done = walked if retired else max(0, walked - waiting)
    complete = ended and (retired or settled)
    rate = (done - before) / seconds if index.state is IndexState.BUILDING and not complete and seconds > 0 else 0.0
    return Reindex(
        index=index,
        messages=messages,
        done=done,
        failed=0 if retired else failed,
        complete=complete,
        switches=switches and index.state in (IndexState.BUILDING, IndexState.PAUSED),
        per_second=rate if rate > 0 else None,
        seconds_left=(messages - done) / rate if rate > 0 else None,
        problem=problem,
    )


_GOING = """
UPDATE index_walks SET going_since = clock_timestamp(),
    done_before = walked - (SELECT count(*) FROM index_tasks t
                            WHERE t.index_no = index_walks.index_no AND t.lane = %s AND t.failed_at IS NULL)
WHERE index_no = %s
"""


def going_again(conn: Connection, index_no: int) -> None:
    """The rate counts from now on."""
    conn.execute(_GOING, (Lane.REINDEX, index_no))


_HOLD = "UPDATE index_walks SET switches = false WHERE index_no = %s"
_PROBLEM = "UPDATE index_walks SET problem = %(problem)s WHERE index_no = %(index_no)s AND problem IS DISTINCT FROM %(problem)s"


def hold(conn: Connection, index_no: int) -> None:
    """Recall does not go over to the index by itself any more."""
    conn.execute(_HOLD, (index_no,))


def note_problem(conn: Connection, index_no: int, problem: str | None) -> None:
    """What keeps a worker from going on with the index; None: nothing does."""
    conn.execute(_PROBLEM, {"index_no": index_no, "problem": problem})


_RETIRE = """
INSERT INTO index_walks (index_no) VALUES (%s)
ON CONFLICT (index_no) DO UPDATE SET user_no = 0, message_no = 0, ended_at = NULL, switches = false, problem = NULL
"""


def retire(conn: Connection, index_no: int) -> None:
    """Nothing new is given to the index any more; its rows, tasks too, are removed bit by bit.

    The caller holds `lock_alone`.
    """
    indexes.set_states(conn, {index_no: IndexState.RETIRED})
    conn.execute(_RETIRE, (index_no,))


_WORK = """
SELECT EXISTS (
    SELECT 1 FROM search_indexes i LEFT JOIN index_walks w USING (index_no)
    WHERE (i.state = 'building' AND (w.ended_at IS NULL OR w.switches)) OR (i.state = 'retired' AND w.ended_at IS NULL)
) OR EXISTS (
    SELECT 1 FROM index_tasks t JOIN search_indexes i USING (index_no)
    WHERE t.failed_at IS NULL AND i.state <> 'paused' AND (i.state <> 'active' OR t.lane = 'reindex')
)
"""


def work_left(conn: Connection) -> bool:
    """Whether a worker has something to do beside what recall waits for."""
    row = conn.execute(_WORK).fetchone()
    return row is not None and bool(row[0])


# The state is looked at again when the walk changed hands meanwhile, hence its lock.
_LOCK_WALK = """
SELECT w.user_no, w.message_no FROM index_walks w JOIN search_indexes i USING (index_no)
WHERE w.index_no = %s AND i.state = %s AND w.ended_at IS NULL
FOR NO KEY UPDATE OF w SKIP LOCKED FOR KEY SHARE OF i SKIP LOCKED
"""


def lock_walk(conn: Connection, index: SearchIndex) -> tuple[int, int] | None:
    """(user_no, message_no) of the last one looked at; None when the walk has ended or another worker has it."""
    row = conn.execute(_LOCK_WALK, (index.index_no, index.state)).fetchone()
    return None if row is None else (row[0], row[1])


@dataclass(frozen=True, kw_only=True)
class Old:
    """A message on the walk's way; `content` is None where the index has its chunks already."""

    user_no: int
    message_no: int
    session_no: int
    seq: int
    created_at: datetime
    user_key: bytes
    content: str | None


# At least one, then as many as fit into the bytes. Locked, so that a deletion comes before or after.
_NEXT = """
WITH page AS (
    SELECT user_no, message_no, octet_length(content) AS size FROM messages
    WHERE (user_no, message_no) > (%(user_no)s, %(message_no)s) ORDER BY user_no, message_no LIMIT %(limit)s
), fitting AS (
    SELECT user_no, message_no FROM (
        SELECT user_no, message_no, size, sum(size) OVER (ORDER BY user_no, message_no) AS total FROM page
    ) AS summed WHERE total <= %(most_bytes)s OR total = size
)
SELECT m.user_no, m.message_no, m.session_no, m.seq, m.created_at, u.key,
       CASE WHEN NOT EXISTS (SELECT 1 FROM chunks c WHERE c.user_no = m.user_no AND c.message_no = m.message_no
                             AND c.index_no = %(index_no)s) THEN m.content END
FROM fitting f JOIN messages m USING (user_no, message_no) JOIN users u USING (user_no)
ORDER BY m.user_no, m.message_no FOR KEY SHARE OF m
"""


def next_messages(conn: Connection, index_no: int, after: tuple[int, int], *, limit: int, most_bytes: int) -> list[Old]:
    """The messages behind `after` in the order of the walk; none: it is at its end."""
    values = {
        "index_no": index_no,
        "user_no": after[0],
        "message_no": after[1],
        "limit": limit,
        "most_bytes": most_bytes,
    }
    return [
        Old(
            user_no=user_no,
            message_no=message_no,
            session_no=session_no,
            seq=seq,
            created_at=created_at,
            user_key=key,
            content=content,
        )
        for user_no, message_no, session_no, seq, created_at, key, content in conn.execute(_NEXT, values)
    ]


_ADVANCE = "UPDATE index_walks SET user_no = %s, message_no = %s, walked = walked + %s WHERE index_no = %s"
_END = "UPDATE index_walks SET ended_at = clock_timestamp(), messages = walked WHERE index_no = %s"


def advance(conn: Connection, index_no: int, to: tuple[int, int], *, by: int) -> None:
    """So far has the walk come. The caller holds `lock_walk`."""
    conn.execute(_ADVANCE, (*to, by, index_no))


def end(conn: Connection, index_no: int) -> None:
    """Nothing is left to look at. The caller holds `lock_walk`."""
    conn.execute(_END, (index_no,))


_NEXT_USER = "SELECT user_no FROM users WHERE user_no > %s ORDER BY user_no LIMIT 1 FOR NO KEY UPDATE"
_OLDEST = """
WHERE user_no = %(user_no)s AND index_no = %(index_no)s AND chunk_no IN (
    SELECT chunk_no FROM chunks WHERE user_no = %(user_no)s AND index_no = %(index_no)s ORDER BY chunk_no LIMIT %(limit)s
)
"""
# Tasks first: a worker that still has a lease finds none, once it has the user's lock, and writes nothing. Users before
# tasks, and these in order, is the way that `tasks.finish` and deletions go too, so none waits for the other in a circle.
_REMOVE_TASKS = """
DELETE FROM index_tasks WHERE user_no = %(user_no)s AND index_no = %(index_no)s AND message_no IN (
    SELECT message_no FROM index_tasks WHERE user_no = %(user_no)s AND index_no = %(index_no)s
    ORDER BY message_no LIMIT %(limit)s FOR UPDATE
)
"""
# Vectors before chunks, in one statement, which the triggers on them count at once; a cascade comes row by row.
_REMOVE_VECTORS = f"DELETE FROM vectors {_OLDEST}"
_REMOVE_CHUNKS = f"DELETE FROM chunks {_OLDEST}"
_REMOVE_SIZE = "DELETE FROM index_sizes WHERE user_no = %(user_no)s AND index_no = %(index_no)s"


def next_user(conn: Connection, after: int) -> int | None:
    """The next user, locked as whoever writes or removes vectors does; None: there is none."""
    row = conn.execute(_NEXT_USER, (after,)).fetchone()
    return None if row is None else int(row[0])


def remove_rows(conn: Connection, index_no: int, user_no: int, *, limit: int) -> bool:
    """Remove up to `limit` tasks, then chunks, of the user in a retired index; True when none are left.

    The caller locked the user.
    """
    values = {"index_no": index_no, "user_no": user_no, "limit": limit}
    if conn.execute(_REMOVE_TASKS, values).rowcount == limit:
        return False
    conn.execute(_REMOVE_VECTORS.encode(), values)
    if conn.execute(_REMOVE_CHUNKS.encode(), values).rowcount == limit:
        return False
    conn.execute(_REMOVE_SIZE, values)
    return True


_TO_REMOVE = """
SELECT i.index_no FROM search_indexes i JOIN index_walks w USING (index_no)
WHERE i.state = 'retired' AND w.ended_at IS NULL ORDER BY i.index_no
"""


def to_remove(conn: Connection) -> list[int]:
    """index_no of the retired indexes that still have rows."""
    return [no for (no,) in conn.execute(_TO_REMOVE)]
