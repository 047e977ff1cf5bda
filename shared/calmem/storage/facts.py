"""Rows of facts and their earlier versions."""

from __future__ import annotations

from datetime import datetime

from calmem.model import Fact, FactVersion
from calmem.storage.pool import Connection

_COLUMNS = "f.fact_no, s.session_id, f.category, f.key, f.value, f.created_at, f.updated_at, f.expires_at, f.source"
_ALIVE = "(f.expires_at IS NULL OR f.expires_at > now())"

# The lock on the session makes writers of one key take turns, so each sees the value it replaces.
_KEEP_OLD = """
INSERT INTO fact_versions (user_no, fact_no, category, value, written_at)
SELECT user_no, fact_no, category, value, updated_at FROM facts
WHERE user_no = %(user_no)s AND session_no = %(session_no)s AND key = %(key)s
"""
_PUT = f"""
WITH f AS (
    INSERT INTO facts (user_no, session_no, category, key, value, expires_at, source)
    VALUES (%(user_no)s, %(session_no)s, %(category)s, %(key)s, %(value)s, %(expires_at)s, %(source)s)
    ON CONFLICT (user_no, session_no, key) DO UPDATE SET category = excluded.category, value = excluded.value,
        expires_at = excluded.expires_at, source = excluded.source, updated_at = clock_timestamp()
    RETURNING *
)
SELECT {_COLUMNS} FROM f JOIN sessions s USING (user_no, session_no)
"""


def put_fact(
    conn: Connection,
    *,
    user_no: int,
    session_no: int,
    category: str,
    key: str,
    value: str,
    expires_at: datetime | None,
    source: str | None,
) -> Fact:
    """Write the value, keeping the one it replaces. The caller holds the session's lock."""
    values = {
        "user_no": user_no,
        "session_no": session_no,
        "category": category,
        "key": key,
        "value": value,
        "expires_at": expires_at,
        "source": source,
    }
    conn.execute(_KEEP_OLD, values)
    row = conn.execute(_PUT.encode(), values).fetchone()
    assert row is not None
    return from_row(row)


# The session's live facts, oldest write first.
OF_SESSION = f"""
SELECT {_COLUMNS} FROM facts f JOIN sessions s USING (user_no, session_no)
WHERE f.user_no = %(user_no)s AND f.session_no = %(session_no)s AND {_ALIVE} ORDER BY f.updated_at, f.fact_no
"""


_FIND = f"""
SELECT {_COLUMNS} FROM facts f JOIN sessions s USING (user_no, session_no)
WHERE f.user_no = %(user_no)s AND {_ALIVE}
  AND (%(category)s::text IS NULL OR f.category = %(category)s)
  AND (%(session_id)s::text IS NULL OR s.session_id = %(session_id)s)
ORDER BY f.updated_at DESC, f.fact_no DESC
"""


def find_facts(conn: Connection, user_no: int, *, category: str | None, session_id: str | None) -> list[Fact]:
    """Live facts, newest write first; None: any."""
    values = {"user_no": user_no, "category": category, "session_id": session_id}
    return [from_row(row) for row in conn.execute(_FIND.encode(), values)]


_PAGE = f"""
SELECT {_COLUMNS} FROM facts f JOIN sessions s USING (user_no, session_no)
WHERE f.user_no = %s AND f.fact_no > %s AND {_ALIVE} ORDER BY f.fact_no LIMIT %s
"""


def page_facts(conn: Connection, user_no: int, *, after: int, limit: int) -> list[Fact]:
    """Live facts in the order they were first written in, those after fact_no `after`."""
    return [from_row(row) for row in conn.execute(_PAGE.encode(), (user_no, after, limit))]


_DELETE = "DELETE FROM facts WHERE user_no = %s AND session_no = %s AND key = %s"


def delete_fact(conn: Connection, user_no: int, session_no: int, key: str) -> int:
    """Number of facts removed, 0 or 1; earlier versions go with it."""
    return conn.execute(_DELETE, (user_no, session_no, key)).rowcount


_VERSIONS = """
SELECT v.value, v.category, v.written_at, v.superseded_at
FROM fact_versions v JOIN facts f USING (user_no, fact_no)
WHERE f.user_no = %s AND f.session_no = %s AND f.key = %s ORDER BY v.version
"""


def fact_versions(conn: Connection, user_no: int, session_no: int, key: str) -> list[FactVersion]:
    """Replaced values of one fact, oldest first."""
    return [
        FactVersion(value=value, category=category, written_at=written, superseded_at=superseded)
        for value, category, written, superseded in conn.execute(_VERSIONS, (user_no, session_no, key))
    ]


def from_row(row: tuple[object, ...]) -> Fact:
    """Of the columns of this module's statements."""
    fact_no, session_id, category, key, value, created_at, updated_at, expires_at, source = row
    assert isinstance(fact_no, int)
    assert isinstance(created_at, datetime)
    assert isinstance(updated_at, datetime)
    return Fact(
        fact_id=fact_no,
        session_id=str(session_id),
        category=str(category),
        key=str(key),
        value=str(value),
        created_at=created_at,
        updated_at=updated_at,
        expires_at=expires_at if isinstance(expires_at, datetime) else None,
        source=None if source is None else str(source),
    )
