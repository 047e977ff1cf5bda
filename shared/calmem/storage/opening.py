"""What recall has to know of a user before it searches, in two messages: who asks, then what is there.

Apart, because with memory off nothing that remembers is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calmem.model import Fact, SearchIndex, StoredUser
from calmem.storage import facts, indexes, users
from calmem.storage.pool import Connection


@dataclass(frozen=True, kw_only=True)
class Asker:
    indexes: Sequence[SearchIndex]  # the active one first
    user: StoredUser | None  # None: never seen
    session_no: int | None  # None: nobody has the session


@dataclass(frozen=True, kw_only=True)
class Contents:
    remembers: bool  # there is a message or a fact
    speakers: Sequence[str]  # the names of who spoke in the user's sessions, the first 50
    facts: Sequence[Fact]  # of the session, oldest write first


_ASKER = f"""
SELECT {users.COLUMNS}, owner, session_no
FROM (SELECT %(user_id)s::text AS user_id, %(session_id)s::text AS session_id) AS asked
LEFT JOIN users USING (user_id) LEFT JOIN (SELECT user_no AS owner, session_no, session_id FROM sessions) AS s USING (session_id);
{indexes.IN_USE}
"""


def read_asker(conn: Connection, user_id: str, session_id: str | None) -> Asker:
    """`conn` as `Database.read` gives it; `session_id` None: no session.

    Raises Forbidden when the session is another user's, PermanentError on a database that was never migrated.
    """
    cursor = conn.execute(_ASKER.encode(), {"user_id": user_id, "session_id": session_id})
    row = cursor.fetchone()
    assert row is not None
    cursor.nextset()
    in_use = indexes.checked(cursor.fetchall())
    *columns, owner, session_no = row
    user = None if columns[0] is None else users.from_row(columns)
    if owner is not None:
        users.refuse_foreign(owner, -1 if user is None else user.user_no)
    return Asker(indexes=in_use, user=user, session_no=session_no)


# A loose scan of the names in `messages_names`: its cost follows the number of names, not of messages.
_CONTENTS = f"""
SELECT EXISTS (SELECT 1 FROM messages WHERE user_no = %(user_no)s) OR EXISTS (SELECT 1 FROM facts WHERE user_no = %(user_no)s),
    ARRAY(
        WITH RECURSIVE one AS (
            (SELECT name, 1 AS n FROM messages WHERE user_no = %(user_no)s AND name IS NOT NULL ORDER BY name LIMIT 1)
            UNION ALL
            SELECT (
                SELECT m.name FROM messages m WHERE m.user_no = %(user_no)s AND m.name > one.name ORDER BY m.name LIMIT 1
            ), n + 1
            FROM one WHERE one.name IS NOT NULL AND n < %(most_speakers)s
        )
        SELECT name FROM one WHERE name IS NOT NULL
    );
{facts.OF_SESSION}
"""
_MOST_SPEAKERS = 50


def read_contents(conn: Connection, user_no: int, session_no: int | None) -> Contents:
    """`conn` as `Database.read` gives it; `session_no` None: no facts."""
    values = {"user_no": user_no, "session_no": session_no, "most_speakers": _MOST_SPEAKERS}
    cursor = conn.execute(_CONTENTS.encode(), values)
    row = cursor.fetchone()
    assert row is not None
    cursor.nextset()
    return Contents(remembers=row[0], speakers=row[1], facts=[facts.from_row(one) for one in cursor])
