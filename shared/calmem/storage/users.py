"""Rows of users and sessions, and their removal."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from calmem.errors import Forbidden, Overtaken
from calmem.model import Session, StoredUser, UserSummary
from calmem.storage.pool import Connection

COLUMNS = "user_no, user_id, memory_on, time_zone, key"
_USER = f"SELECT {COLUMNS} FROM users WHERE user_id = %s"


def get_user(conn: Connection, user_id: str) -> StoredUser | None:
    row = conn.execute(_USER.encode(), (user_id,)).fetchone()
    return None if row is None else from_row(row)


_CREATE = "INSERT INTO users (user_id, key) VALUES (%s, %s) ON CONFLICT (user_id) DO NOTHING"


def ensure_user(conn: Connection, user_id: str) -> StoredUser:
    """The user, created with memory on and UTC when new."""
    user = get_user(conn, user_id)
    while user is None:  # again only if the row is deleted between the two statements
        conn.execute(_CREATE, (user_id, secrets.token_bytes(16)))
        user = get_user(conn, user_id)
    return user


_UPDATE = f"""
UPDATE users SET memory_on = coalesce(%(memory_on)s, memory_on), time_zone = coalesce(%(time_zone)s, time_zone)
WHERE user_no = %(user_no)s
RETURNING {COLUMNS}
"""


def update_user(conn: Connection, user_no: int, *, memory_on: bool | None, time_zone: str | None) -> StoredUser | None:
    """Change what is not None; None when the user was deleted meanwhile."""
    values = {"user_no": user_no, "memory_on": memory_on, "time_zone": time_zone}
    row = conn.execute(_UPDATE.encode(), values).fetchone()
    return None if row is None else from_row(row)


def from_row(row: Sequence[object]) -> StoredUser:
    """Of COLUMNS."""
    user_no, user_id, memory_on, time_zone, key = row
    assert isinstance(user_no, int)
    assert isinstance(memory_on, bool)
    assert isinstance(key, bytes)
    return StoredUser(user_no=user_no, user_id=str(user_id), memory_on=memory_on, time_zone=str(time_zone), key=key)


_SESSION_OWNER = "SELECT user_no, session_no FROM sessions WHERE session_id = %s"


def own_session(conn: Connection, user_no: int, session_id: str) -> int | None:
    """session_no of the user's session, None when nobody has it. Raises Forbidden when it is another user's."""
    row = conn.execute(_SESSION_OWNER, (session_id,)).fetchone()
    if row is None:
        return None
    refuse_foreign(row[0], user_no)
    return int(row[1])


def refuse_foreign(owner: int, user_no: int) -> None:
    """Raises Forbidden unless the session's owner is the user."""
    if owner != user_no:
        raise Forbidden("session_id: this session is not this user's; choose another id")


_LOCK_SESSION = "SELECT user_no, session_no, last_seq FROM sessions WHERE session_id = %s FOR NO KEY UPDATE"
_EXISTS = "SELECT 1 FROM users WHERE user_no = %s"
_CREATE_SESSION = "INSERT INTO sessions (user_no, session_id) VALUES (%s, %s) ON CONFLICT (session_id) DO NOTHING"


def lock_session(conn: Connection, user_no: int, session_id: str) -> tuple[int, int]:
    """(session_no, last_seq) of the user's session, created when new; one recorder at a time until commit.

    Raises Forbidden when the session is another user's, Overtaken when the user is gone.
    """
    row = conn.execute(_LOCK_SESSION, (session_id,)).fetchone()
    while row is None:
        conn.execute(_CREATE_SESSION, (user_no, session_id))
        row = conn.execute(_LOCK_SESSION, (session_id,)).fetchone()
    if row[0] != user_no and conn.execute(_EXISTS, (user_no,)).fetchone() is None:
        raise Overtaken("the user was deleted at the same moment; try again")  # and may have the session anew
    refuse_foreign(row[0], user_no)
    return row[1], row[2]


_SESSIONS = """
SELECT s.session_id, s.session_no, count(m.message_no), min(m.created_at), max(m.created_at)
FROM sessions s LEFT JOIN messages m USING (user_no, session_no)
WHERE s.user_no = %(user_no)s AND s.session_no > %(after)s
GROUP BY s.session_id, s.session_no ORDER BY s.session_no LIMIT %(limit)s
"""


def list_sessions(conn: Connection, user_no: int, *, after: int, limit: int) -> list[tuple[int, Session]]:
    """(session_no, session), in the order of their creation, those after session_no `after`."""
    rows = conn.execute(_SESSIONS, {"user_no": user_no, "after": after, "limit": limit}).fetchall()
    return [
        (no, Session(session_id=session_id, messages=count, first_at=first, last_at=last))
        for session_id, no, count, first, last in rows
    ]


_LIST = """
SELECT u.user_no, u.user_id, u.memory_on, u.created_at, (SELECT count(*) FROM sessions s WHERE s.user_no = u.user_no),
       (SELECT count(*) FROM messages m WHERE m.user_no = u.user_no)
FROM users u
WHERE u.user_no > %(after)s AND starts_with(u.user_id, %(starts_with)s) ORDER BY u.user_no LIMIT %(limit)s
"""


def list_users(conn: Connection, *, starts_with: str, after: int, limit: int) -> list[tuple[int, UserSummary]]:
    """(user_no, user) of those whose id begins so, in the order of their creation, those after user_no `after`."""
    rows = conn.execute(_LIST, {"starts_with": starts_with, "after": after, "limit": limit}).fetchall()
    return [
        (no, UserSummary(user_id=user_id, memory_on=on, sessions=sessions, messages=messages, created_at=created_at))
        for no, user_id, on, created_at, sessions, messages in rows
    ]


_COUNT = """
SELECT
    (SELECT count(*) FROM sessions WHERE user_no = %(user_no)s {sessions}),
    (SELECT count(*) FROM messages WHERE user_no = %(user_no)s {messages}),
    (SELECT count(*) FROM chunks WHERE user_no = %(user_no)s {chunks}),
    (SELECT count(*) FROM vectors v WHERE user_no = %(user_no)s {vectors}),
    (SELECT count(*) FROM facts WHERE user_no = %(user_no)s {facts})
"""
_CHUNK_OF_VECTOR = (
    "EXISTS (SELECT 1 FROM chunks c WHERE c.user_no = v.user_no AND c.index_no = v.index_no AND c.chunk_no = v.chunk_no"
)
_KINDS = ("sessions", "messages", "chunks", "vectors", "facts")

_COUNT_USER = _COUNT.format(sessions="", messages="", chunks="", vectors="", facts="")
_IN_SESSION = "AND session_no = %(no)s"
_COUNT_SESSION = _COUNT.format(
    sessions=_IN_SESSION,
    messages=_IN_SESSION,
    chunks=_IN_SESSION,
    vectors=f"AND {_CHUNK_OF_VECTOR} AND c.session_no = %(no)s)",
    facts=_IN_SESSION,
)
_OF_MESSAGE = "AND message_no = %(no)s"
_COUNT_MESSAGE = _COUNT.format(
    sessions="AND false",
    messages=_OF_MESSAGE,
    chunks=_OF_MESSAGE,
    vectors=f"AND {_CHUNK_OF_VECTOR} AND c.message_no = %(no)s)",
    facts="AND false",
)

_LOCK_USER = "SELECT 1 FROM users WHERE user_no = %s FOR UPDATE"
# Removing vectors writes the user's mark, so the row is taken first, as `tasks.finish` does; recorders need not wait.
_LOCK_MARKS = "SELECT 1 FROM users WHERE user_no = %s FOR NO KEY UPDATE"
# A worker holds FOR KEY SHARE on the messages it is writing; waiting for it here, before the counts, makes
# the receipt exact and leaves nothing that was written meanwhile.
_LOCK_MESSAGES = "SELECT count(*) FROM (SELECT 1 FROM messages WHERE user_no = %(user_no)s {where} ORDER BY message_no FOR UPDATE) AS locked"

# A key bound to nobody speaks for everybody, so it is revoked in the same statement.
_REVOKE_KEYS = """
UPDATE api_keys SET revoked_at = coalesce(revoked_at, now()), user_id = NULL
WHERE user_id = (SELECT user_id FROM users WHERE user_no = %s)
"""


# In one statement, which the triggers on vectors count at once; a cascade comes row by row.
_DELETE_VECTORS = """
DELETE FROM vectors v USING chunks c WHERE v.user_no = %(user_no)s AND c.user_no = v.user_no AND c.index_no = v.index_no
    AND c.chunk_no = v.chunk_no {where}
"""


def delete_user(conn: Connection, user_no: int) -> Mapping[str, int]:
    """Remove everything of the user, and revoke the keys bound to them; counts per kind."""
    conn.execute(_LOCK_USER, (user_no,))
    conn.execute(_REVOKE_KEYS, (user_no,))
    conn.execute(_LOCK_MESSAGES.format(where="").encode(), {"user_no": user_no})
    counts = count_user(conn, user_no)
    conn.execute(_DELETE_VECTORS.format(where="").encode(), {"user_no": user_no})
    gone = conn.execute("DELETE FROM users WHERE user_no = %s", (user_no,)).rowcount
    return {"users": gone, **counts}


def delete_session(conn: Connection, user_no: int, session_no: int) -> Mapping[str, int]:
    values = {"user_no": user_no, "no": session_no}
    conn.execute(_LOCK_MARKS, (user_no,))
    lock = "SELECT 1 FROM sessions WHERE user_no = %(user_no)s AND session_no = %(no)s FOR UPDATE"
    conn.execute(lock, values)
    conn.execute(_LOCK_MESSAGES.format(where=_IN_SESSION).encode(), values)
    counts = _count(conn, _COUNT_SESSION, values)
    conn.execute(_DELETE_VECTORS.format(where="AND c.session_no = %(no)s").encode(), values)
    conn.execute("DELETE FROM sessions WHERE user_no = %(user_no)s AND session_no = %(no)s", values)
    return counts


def count_user(conn: Connection, user_no: int) -> Mapping[str, int]:
    """How much there is of the user, per kind."""
    return _count(conn, _COUNT_USER, {"user_no": user_no})


_MESSAGE_NO = "SELECT message_no FROM messages WHERE user_no = %s AND message_id = %s FOR UPDATE"


def delete_message(conn: Connection, user_no: int, message_id: str) -> Mapping[str, int] | None:
    """Counts per kind, None when the user has no such message."""
    conn.execute(_LOCK_MARKS, (user_no,))
    row = conn.execute(_MESSAGE_NO, (user_no, message_id)).fetchone()
    if row is None:
        return None
    values = {"user_no": user_no, "no": row[0]}
    counts = _count(conn, _COUNT_MESSAGE, values)
    conn.execute(_DELETE_VECTORS.format(where="AND c.message_no = %(no)s").encode(), values)
    conn.execute("DELETE FROM messages WHERE user_no = %(user_no)s AND message_no = %(no)s", values)
    return counts


def _count(conn: Connection, sql: str, values: Mapping[str, object]) -> dict[str, int]:
    row = conn.execute(sql.encode(), values).fetchone()
    assert row is not None
    return dict(zip(_KINDS, row, strict=True))
