"""Rows of index_tasks: what is still to be embedded, who holds a lease on it, what was set aside.

    fresh ──claim──▶ leased ──finish──▶ (deleted)
                       │ ├─fail──────▶ suspect ──claim alone──▶ leased …   (after 2^attempts seconds)
                       │ ├─fail, last attempt──▶ failed ──retry──▶ suspect
                       │ ├─give_back─▶ as before the claim
                       └─lease runs out──▶ suspect, or failed by the sweeper after the last attempt

Leases are judged by the database's clock only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import cast
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from calmem.model import Claim, FailedMessage, Lane, NewChunk, SearchIndex, Span, Unindexed
from calmem.storage.indexes import vector_literal
from calmem.storage.pool import Connection
from calmem.storage.vectors import parse_halves

# A loose scan of the users that wait, from `from_user` on: each gets an equal share of the batch, so that one
# user's import cannot keep the others waiting.
_FRESH = """
WITH RECURSIVE who AS (
    SELECT (SELECT t.user_no FROM index_tasks t WHERE t.lane = %(lane)s AND t.attempts = 0 AND t.index_no = %(index_no)s
            AND t.user_no >= %(from_user)s ORDER BY t.user_no LIMIT 1) AS user_no, 1 AS n
    UNION ALL
    SELECT (SELECT t.user_no FROM index_tasks t WHERE t.lane = %(lane)s AND t.attempts = 0 AND t.index_no = %(index_no)s
            AND t.user_no > who.user_no ORDER BY t.user_no LIMIT 1), n + 1
    FROM who WHERE who.user_no IS NOT NULL AND n < %(limit)s
), picked AS MATERIALIZED (
    SELECT p.* FROM who CROSS JOIN LATERAL (
        SELECT t.user_no, t.message_no, t.index_no FROM index_tasks t
        WHERE t.lane = %(lane)s AND t.attempts = 0 AND t.index_no = %(index_no)s AND t.user_no = who.user_no
        ORDER BY t.message_no
        LIMIT (SELECT greatest(1, %(limit)s / greatest(1, count(user_no))) FROM who)
        FOR UPDATE SKIP LOCKED
    ) AS p
)
"""
_SUSPECT = """
WITH picked AS MATERIALIZED (
    SELECT user_no, message_no, index_no FROM index_tasks
    WHERE lane = %(lane)s AND attempts > 0 AND failed_at IS NULL AND attempts < %(max_attempts)s AND index_no = %(index_no)s
      AND not_before <= clock_timestamp() AND (lease_until IS NULL OR lease_until < clock_timestamp())
    ORDER BY not_before LIMIT 1
    FOR UPDATE SKIP LOCKED
)
"""
_LEASE = """
UPDATE index_tasks t SET attempts = t.attempts + 1, lease_token = %(token)s,
    lease_until = clock_timestamp() + make_interval(secs => %(lease_seconds)s)
FROM picked p JOIN messages m USING (user_no, message_no) JOIN users u USING (user_no)
WHERE t.user_no = p.user_no AND t.message_no = p.message_no AND t.index_no = p.index_no
RETURNING t.user_no, t.message_no, m.session_no, m.seq, m.created_at, m.name, u.key, t.attempts, octet_length(m.content)
"""


def claim_fresh(
    conn: Connection, *, lane: Lane, index_no: int, limit: int, lease_seconds: float, token: UUID, from_user: int
) -> list[Claim]:
    """Lease up to `limit` messages that were never attempted, shared out over the users from `from_user` on."""
    values = {
        "lane": lane,
        "index_no": index_no,
        "limit": limit,
        "lease_seconds": lease_seconds,
        "token": token,
        "from_user": from_user,
    }
    return _claims(conn, _FRESH + _LEASE, values)


def claim_suspect(
    conn: Connection, *, lane: Lane, index_no: int, lease_seconds: float, token: UUID, max_attempts: int
) -> list[Claim]:
    """Lease one message that was attempted before and is due again; none or one."""
    values = {
        "lane": lane,
        "index_no": index_no,
        "lease_seconds": lease_seconds,
        "token": token,
        "max_attempts": max_attempts,
    }
    return _claims(conn, _SUSPECT + _LEASE, values)


def _claims(conn: Connection, sql: str, values: Mapping[str, object]) -> list[Claim]:
    rows = cast(
        "list[tuple[int, int, int, int, datetime, str | None, bytes, int, int]]",
        conn.execute(sql.encode(), values).fetchall(),
    )
    claims = [
        Claim(
            user_no=user_no,
            message_no=message_no,
            session_no=session_no,
            seq=seq,
            created_at=created_at,
            name=name,
            user_key=key,
            attempts=attempts,
            size=size,
        )
        for user_no, message_no, session_no, seq, created_at, name, key, attempts, size in rows
    ]
    return sorted(claims, key=lambda c: c.message_no)


# SKIP LOCKED: a row that a deletion holds needs no lease any more, and waiting for it while holding others could end
# in a deadlock.
_RENEW = """
UPDATE index_tasks SET lease_until = clock_timestamp() + make_interval(secs => %s)
WHERE (user_no, message_no, index_no) IN (
    SELECT user_no, message_no, index_no FROM index_tasks WHERE lease_token = %s FOR UPDATE SKIP LOCKED
)
"""


def renew(conn: Connection, *, token: UUID, lease_seconds: float) -> None:
    """Begin the lease anew for everything still held under the token."""
    conn.execute(_RENEW, (lease_seconds, token))


_GIVE_BACK = """
UPDATE index_tasks SET attempts = attempts - 1, lease_token = NULL, lease_until = NULL
WHERE (user_no, message_no, index_no) IN (
    SELECT user_no, message_no, index_no FROM index_tasks WHERE lease_token = %s FOR UPDATE SKIP LOCKED
)
"""


def give_back(conn: Connection, *, token: UUID) -> int:
    """End the leases under the token as if they had never been taken. Returns how many."""
    return conn.execute(_GIVE_BACK, (token,)).rowcount


_CONTENTS = """
SELECT message_no, content FROM messages WHERE (user_no, message_no) IN (SELECT * FROM unnest(%s::bigint[], %s::bigint[]))
"""
_SPANS = """
SELECT message_no, chunk_no, start_char, end_char FROM chunks
WHERE (user_no, message_no) IN (SELECT * FROM unnest(%s::bigint[], %s::bigint[])) AND index_no = %s
ORDER BY message_no, start_char, chunk_no
"""


# The vectors of the same text that another index of the same model has.
_KNOWN = """
SELECT c.message_no, c.start_char, c.end_char, v.embedding FROM chunks c JOIN vectors v USING (user_no, index_no, chunk_no)
WHERE (c.user_no, c.message_no) IN (SELECT * FROM unnest(%s::bigint[], %s::bigint[])) AND c.index_no = %s
"""


def load_unindexed(
    conn: Connection, claims: Sequence[Claim], *, index_no: int, like: SearchIndex | None = None
) -> dict[int, Unindexed]:
    """By message_no; a message deleted meanwhile is missing. `like`: an index of the same model, to take vectors from."""
    users, nos = [c.user_no for c in claims], [c.message_no for c in claims]
    known: dict[int, dict[Span, NDArray[np.float32]]] = {}
    if like is not None and like.dimension is not None:
        with conn.cursor(binary=True) as cursor:
            rows = cursor.execute(_KNOWN, (users, nos, like.index_no)).fetchall()
        halves = parse_halves([row[3] for row in rows], like.dimension)
        for (no, start, end, _), half in zip(rows, halves, strict=True):
            known.setdefault(no, {})[Span(start=start, end=end)] = half.astype(np.float32)
    written: dict[int, list[tuple[int, Span]]] = {}
    for no, chunk_no, start, end in conn.execute(_SPANS, (users, nos, index_no)):
        written.setdefault(no, []).append((chunk_no, Span(start=start, end=end)))
    contents = cast("list[tuple[int, str]]", conn.execute(_CONTENTS, (users, nos)).fetchall())
    return {
        no: Unindexed(content=content, chunks=written.get(no, []), known=known.get(no, {})) for no, content in contents
    }


# Users first, then messages, then tasks, each in order: whoever deletes goes the same way. Writers of one user's vectors
# take turns until their commit, so that `written` grows in the order of commits (docs/decisions/0007-vector-cache.md).
_LOCK_USERS = "SELECT user_no FROM users WHERE user_no = ANY(%s) ORDER BY user_no FOR NO KEY UPDATE"
_ADVANCE_USERS = "UPDATE users SET vectors_written = vectors_written + 1 WHERE user_no = ANY(%s)"
# Messages before tasks, in the order of message_no: a deletion locks the message first too, so one waits for the
# other and neither ends in a deadlock. What is written while a deletion waits goes with the message's cascade.
_LOCK_MESSAGES = """
SELECT message_no FROM messages WHERE (user_no, message_no) IN (SELECT * FROM unnest(%s::bigint[], %s::bigint[]))
ORDER BY message_no FOR KEY SHARE
"""
_LOCK_TASKS = """
SELECT message_no FROM index_tasks WHERE lease_token = %s AND message_no = ANY(%s) ORDER BY message_no FOR UPDATE
"""
_DELETE_CHUNKS = "DELETE FROM chunks WHERE user_no = %s AND message_no = %s AND index_no = %s"
_INSERT_CHUNK = """
INSERT INTO chunks (user_no, index_no, session_no, message_no, seq, created_at, start_char, end_char, tokens)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s::bigint[]) RETURNING chunk_no
"""
_INSERT_VECTORS = """
INSERT INTO vectors (user_no, index_no, chunk_no, written, embedding)
SELECT v.user_no, %s, v.chunk_no, u.vectors_written, v.embedding::halfvec
FROM unnest(%s::bigint[], %s::bigint[], %s::text[]) AS v(user_no, chunk_no, embedding) JOIN users u USING (user_no)
"""
_DELETE_TASKS = "DELETE FROM index_tasks WHERE lease_token = %s AND message_no = ANY(%s)"


def finish(conn: Connection, *, token: UUID, index_no: int, results: Sequence[tuple[Claim, Sequence[NewChunk]]]) -> int:
    """Write the chunks and vectors and clear the tasks, for those messages whose lease is still the token's.

    A message's stored chunks are kept when all of its chunks name theirs, else replaced. Deleted messages and lost
    leases are skipped. Every chunk has its vector. Returns the number of messages written.
    """
    by_no = {claim.message_no: (claim, chunks) for claim, chunks in results}
    users, nos = [c.user_no for c, _ in results], [c.message_no for c, _ in results]
    conn.execute(_LOCK_USERS, (users,))
    alive = [no for (no,) in conn.execute(_LOCK_MESSAGES, (users, nos))]
    mine = [no for (no,) in conn.execute(_LOCK_TASKS, (token, alive))]
    if not mine:
        return 0
    owners: list[int] = []
    chunk_nos: list[int] = []
    vectors: list[str] = []
    for no in mine:
        claim, chunks = by_no[no]
        # Nobody but the holder of the lease changes them, and the lease is ours.
        kept = [c.chunk_no for c in chunks if c.chunk_no is not None]
        chunk_nos += kept if chunks and len(kept) == len(chunks) else _replace_chunks(conn, claim, index_no, chunks)
        owners += [claim.user_no] * len(chunks)
        vectors += [vector_literal(c.vector) for c in chunks if c.vector is not None]
    conn.execute(_ADVANCE_USERS, (owners,))
    conn.execute(_INSERT_VECTORS, (index_no, owners, chunk_nos, vectors))
    conn.execute(_DELETE_TASKS, (token, mine))
    return len(mine)


def _replace_chunks(conn: Connection, claim: Claim, index_no: int, chunks: Sequence[NewChunk]) -> list[int]:
    conn.execute(_DELETE_CHUNKS, (claim.user_no, claim.message_no, index_no))
    rows = [
        (
            claim.user_no,
            index_no,
            claim.session_no,
            claim.message_no,
            claim.seq,
            claim.created_at,
            chunk.span.start,
            chunk.span.end,
            list(chunk.tokens),
        )
        for chunk in chunks
    ]
    numbers: list[int] = []
    if rows:
        with conn.cursor() as cursor:
            cursor.executemany(_INSERT_CHUNK, rows, returning=True)
            while True:
                numbers += [no for (no,) in cursor.fetchall()]
                if not cursor.nextset():
                    break
    return numbers


_FAIL = """
UPDATE index_tasks SET error = %(error)s, lease_token = NULL, lease_until = NULL,
    not_before = clock_timestamp() + make_interval(secs => least(300, power(2, attempts))),
    failed_at = CASE WHEN attempts >= %(max_attempts)s THEN clock_timestamp() END
WHERE lease_token = %(token)s AND user_no = %(user_no)s AND message_no = %(message_no)s
RETURNING failed_at IS NOT NULL
"""


def fail(conn: Connection, *, token: UUID, claim: Claim, error: str, max_attempts: int) -> bool:
    """End the attempt with its error; due again after 2^attempts seconds, set aside after the last. True: set aside."""
    values = {
        "token": token,
        "user_no": claim.user_no,
        "message_no": claim.message_no,
        "error": error,
        "max_attempts": max_attempts,
    }
    row = conn.execute(_FAIL, values).fetchone()
    return row is not None and bool(row[0])


_SET_ASIDE = """
UPDATE index_tasks SET failed_at = clock_timestamp(), lease_token = NULL, lease_until = NULL,
    error = coalesce(error, 'the worker died or lost its lease in every attempt')
WHERE (user_no, message_no, index_no) IN (
    SELECT user_no, message_no, index_no FROM index_tasks
    WHERE failed_at IS NULL AND attempts > 0 AND attempts >= %s
      AND (lease_until IS NULL OR lease_until < clock_timestamp())
    FOR UPDATE SKIP LOCKED
)
"""


def set_aside_dead(conn: Connection, *, max_attempts: int) -> int:
    """Set aside what used up its attempts without ever reporting an error. Returns how many."""
    return conn.execute(_SET_ASIDE, (max_attempts,)).rowcount


# Before every failure.
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LIST_FAILED = """
SELECT m.message_no, t.index_no, m.message_id, u.user_id, s.session_id, t.attempts, t.error, t.failed_at
FROM index_tasks t JOIN messages m USING (user_no, message_no) JOIN users u USING (user_no)
JOIN sessions s ON s.user_no = m.user_no AND s.session_no = m.session_no
JOIN search_indexes i ON i.index_no = t.index_no AND i.state <> 'retired'
WHERE t.failed_at IS NOT NULL
  AND (t.failed_at, t.message_no, t.index_no) > (%(failed_at)s, %(message_no)s, %(index_no)s)
  AND (%(user_id)s::text IS NULL OR u.user_id = %(user_id)s)
ORDER BY t.failed_at, t.message_no, t.index_no LIMIT %(limit)s
"""


def list_failed(
    conn: Connection, *, limit: int, after: tuple[datetime, int, int] = (EPOCH, 0, 0), user_id: str | None = None
) -> list[tuple[int, FailedMessage]]:
    """(message_no, message) of those that were set aside, of one user or all, the oldest failure first.

    Those after the key `after`: failed_at, message_no, index_no. One that failed in two indexes comes twice.
    """
    failed_at, message_no, index_no = after
    values = {
        "limit": limit,
        "failed_at": failed_at,
        "message_no": message_no,
        "index_no": index_no,
        "user_id": user_id,
    }
    return [
        (
            message_no,
            FailedMessage(
                index_no=index_no,
                message_id=message_id,
                user_id=user_id,
                session_id=session_id,
                attempts=attempts,
                error=error,
                failed_at=failed_at,
            ),
        )
        for message_no, index_no, message_id, user_id, session_id, attempts, error, failed_at in conn.execute(
            _LIST_FAILED, values
        )
    ]


_RETRY = """
UPDATE index_tasks t SET attempts = 1, error = NULL, failed_at = NULL, not_before = clock_timestamp()
FROM messages m JOIN users u USING (user_no), search_indexes i
WHERE m.user_no = t.user_no AND m.message_no = t.message_no AND t.failed_at IS NOT NULL
  AND i.index_no = t.index_no AND i.state <> 'retired'
  AND (%(message_id)s::text IS NULL OR m.message_id = %(message_id)s)
  AND (%(user_id)s::text IS NULL OR u.user_id = %(user_id)s)
RETURNING t.message_no, t.lane
"""


def retry_failed(conn: Connection, *, message_id: str | None, user_id: str | None = None) -> tuple[int, set[Lane]]:
    """Give one failed message, or all (of one user), its attempts back in every index; how many messages, their lanes."""
    rows = conn.execute(_RETRY, {"message_id": message_id, "user_id": user_id}).fetchall()
    return len({message_no for message_no, _ in rows}), {Lane(lane) for _, lane in rows}
