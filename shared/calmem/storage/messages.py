"""Rows of messages, with the chunks and the task that commit beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import cast

from psycopg.types.json import Jsonb

from calmem.model import IndexState, Lane, Message, NewChunk, NewMessage, Role
from calmem.storage.pool import Connection


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What identifies a stored message when the same id comes again."""

    user_no: int
    session_id: str
    seq: int
    role: str
    name: str | None
    content: str


_EXISTING = """
SELECT m.message_id, m.user_no, s.session_id, m.seq, m.role, m.name, m.content
FROM messages m JOIN sessions s USING (user_no, session_no)
WHERE m.message_id = ANY(%s)
"""


def existing(conn: Connection, message_ids: Sequence[str]) -> dict[str, Stored]:
    rows = conn.execute(_EXISTING, (list(message_ids),))
    return {
        message_id: Stored(user_no=user, session_id=session, seq=seq, role=role, name=name, content=content)
        for message_id, user, session, seq, role, name, content in rows
    }


_INSERT = """
INSERT INTO messages (user_no, session_no, message_id, seq, role, name, content, metadata, created_at)
SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::bigint[], %s::text[], %s::text[], %s::text[],
                     %s::jsonb[], %s::timestamptz[])
ON CONFLICT (message_id) DO NOTHING
RETURNING message_id, message_no
"""


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A new message with its place: whose, which session, which position."""

    user_no: int
    session_no: int
    seq: int
    message: NewMessage
    chunks: Sequence[NewChunk]


def insert_messages(conn: Connection, placed: Sequence[Placed]) -> dict[str, int]:
    """message_no by message_id; an id that another transaction took meanwhile is missing."""
    rows = conn.execute(
        _INSERT,
        (
            [p.user_no for p in placed],
            [p.session_no for p in placed],
            [p.message.message_id for p in placed],
            [p.seq for p in placed],
            [p.message.role for p in placed],
            [p.message.name for p in placed],
            [p.message.content for p in placed],
            [Jsonb(dict(p.message.metadata)) for p in placed],
            [p.message.created_at for p in placed],
        ),
    )
    return dict(cast("list[tuple[str, int]]", rows.fetchall()))


_ADVANCE = """
UPDATE sessions s SET last_seq = n.seq
FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[]) AS n(user_no, session_no, seq)
WHERE s.user_no = n.user_no AND s.session_no = n.session_no
"""


def advance_sessions(conn: Connection, last_seqs: Mapping[tuple[int, int], int]) -> None:
    """Set `last_seq` by (user_no, session_no); the caller holds the sessions' locks."""
    keys = list(last_seqs)
    conn.execute(_ADVANCE, ([u for u, _ in keys], [s for _, s in keys], [last_seqs[k] for k in keys]))


_TASKS = """
INSERT INTO index_tasks (user_no, message_no, index_no, lane)
SELECT user_no, message_no, %s, %s FROM unnest(%s::bigint[], %s::bigint[]) AS t(user_no, message_no)
"""
_CHUNK = """
INSERT INTO chunks (user_no, index_no, session_no, message_no, seq, created_at, start_char, end_char, tokens)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s::bigint[])
"""


def insert_pending(
    conn: Connection, placed: Sequence[Placed], message_nos: Mapping[str, int], *, index_no: int, lane: Lane
) -> int:
    """The chunks that words find at once, and the task that says "still to be embedded".

    A message without chunks (no text of its own) gets neither. Returns the number of tasks.
    """
    pending = [p for p in placed if p.chunks]
    if not pending:
        return 0
    nos = [message_nos[p.message.message_id] for p in pending]
    conn.execute(_TASKS, (index_no, lane, [p.user_no for p in pending], nos))
    rows = [
        (p.user_no, index_no, p.session_no, no, p.seq, p.message.created_at, c.span.start, c.span.end, list(c.tokens))
        for p, no in zip(pending, nos, strict=True)
        for c in p.chunks
    ]
    with conn.cursor() as cursor:
        cursor.executemany(_CHUNK, rows)
    return len(pending)


_LIST = """
SELECT m.message_id, m.seq, m.role, m.name, m.content, m.created_at, m.metadata,
       NOT EXISTS (SELECT 1 FROM index_tasks t WHERE t.user_no = m.user_no AND t.message_no = m.message_no)
FROM messages m
WHERE m.user_no = %(user_no)s AND m.session_no = %(session_no)s AND m.seq > %(after)s
ORDER BY m.seq LIMIT %(limit)s
"""


def list_messages(
    conn: Connection, *, user_no: int, session_no: int, session_id: str, after: int, limit: int
) -> list[Message]:
    """Messages with seq > `after`, in the order they were recorded in."""
    values = {"user_no": user_no, "session_no": session_no, "after": after, "limit": limit}
    rows = cast(
        "list[tuple[str, int, Role, str | None, str, datetime, dict[str, object], bool]]",
        conn.execute(_LIST, values).fetchall(),
    )
    return [
        Message(
            message_id=message_id,
            session_id=session_id,
            seq=seq,
            role=role,
            name=name,
            content=content,
            created_at=created_at,
            metadata=metadata,
            indexed=indexed,
        )
        for message_id, seq, role, name, content, created_at, metadata, indexed in rows
    ]


_STATES = """
SELECT m.seq, CASE
    WHEN t.failed_at IS NOT NULL THEN 'failed'
    WHEN t.message_no IS NOT NULL THEN 'waiting'
    WHEN EXISTS (SELECT 1 FROM chunks c WHERE c.user_no = m.user_no AND c.message_no = m.message_no
                 AND c.index_no = active.index_no) THEN 'indexed'
    ELSE 'empty' END
FROM messages m CROSS JOIN (SELECT index_no FROM search_indexes WHERE state = 'active') AS active
LEFT JOIN index_tasks t ON t.user_no = m.user_no AND t.message_no = m.message_no AND t.index_no = active.index_no
WHERE m.user_no = %s AND m.session_no = %s AND m.seq BETWEEN %s AND %s
"""


def index_states(conn: Connection, *, user_no: int, session_no: int, first: int, last: int) -> dict[int, IndexState]:
    """Where the session's messages from seq `first` to `last` stand in the active index, by seq."""
    rows = conn.execute(_STATES, (user_no, session_no, first, last)).fetchall()
    return {seq: IndexState(state) for seq, state in rows}
