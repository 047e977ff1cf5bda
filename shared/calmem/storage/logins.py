"""Rows of console logins: hashes, never tokens."""

from __future__ import annotations

from calmem.model import ApiKey
from calmem.storage.api_keys import COLUMNS, key_from_row
from calmem.storage.pool import Connection

_PURGE = "DELETE FROM console_logins WHERE expires_at < now()"
_INSERT = """
INSERT INTO console_logins (token_hash, prefix, expires_at) VALUES (%s, %s, now() + make_interval(secs => %s))
"""


def insert_login(conn: Connection, *, token_hash: bytes, prefix: str, seconds: float) -> None:
    """Begin a login with the key of this prefix; those that ran out are removed."""
    conn.execute(_PURGE)
    conn.execute(_INSERT, (token_hash, prefix, seconds))


_FIND = f"""
SELECT {COLUMNS} FROM console_logins JOIN api_keys USING (prefix)
WHERE token_hash = %s AND expires_at > now() AND revoked_at IS NULL
"""


def find_login(conn: Connection, token_hash: bytes) -> ApiKey | None:
    """The key that was logged in with; None when the login or its key ended."""
    row = conn.execute(_FIND.encode(), (token_hash,)).fetchone()
    return None if row is None else key_from_row(row)


_DELETE = "DELETE FROM console_logins WHERE token_hash = %s"


def delete_login(conn: Connection, token_hash: bytes) -> None:
    conn.execute(_DELETE, (token_hash,))
