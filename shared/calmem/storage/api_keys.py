"""Rows of API keys: hashes, never keys."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from calmem.model import ApiKey, KeyScope
from calmem.storage.pool import Connection

COLUMNS = "prefix, hash, name, scopes, user_id, created_at, revoked_at, last_used_at"

_INSERT = f"""
INSERT INTO api_keys (prefix, hash, name, scopes, user_id) VALUES (%s, %s, %s, %s, %s) RETURNING {COLUMNS}
"""


def insert_key(
    conn: Connection, *, prefix: str, key_hash: bytes, name: str, scopes: Sequence[KeyScope], user_id: str | None
) -> ApiKey:
    values = (prefix, key_hash, name, [scope.value for scope in scopes], user_id)
    row = conn.execute(_INSERT.encode(), values).fetchone()
    assert row is not None
    return key_from_row(row)


_LIST = f"SELECT {COLUMNS} FROM api_keys ORDER BY created_at, prefix"


def list_keys(conn: Connection) -> list[ApiKey]:
    """All keys, revoked ones too, oldest first."""
    return [key_from_row(row) for row in conn.execute(_LIST.encode())]


_FIND = f"SELECT {COLUMNS} FROM api_keys WHERE prefix = %s"


def find_key(conn: Connection, prefix: str) -> ApiKey | None:
    row = conn.execute(_FIND.encode(), (prefix,)).fetchone()
    return None if row is None else key_from_row(row)


_ANY = "SELECT EXISTS (SELECT 1 FROM api_keys)"


def any_key(conn: Connection) -> bool:
    """Whether a key was ever made, also when it is revoked by now."""
    row = conn.execute(_ANY).fetchone()
    assert row is not None
    return bool(row[0])


_REVOKE = f"""
UPDATE api_keys SET revoked_at = coalesce(revoked_at, now()) WHERE prefix = %s RETURNING {COLUMNS}
"""


def revoke_key(conn: Connection, prefix: str) -> ApiKey | None:
    """The revoked key, None when there is none of that prefix; revoking again keeps the first time."""
    row = conn.execute(_REVOKE.encode(), (prefix,)).fetchone()
    return None if row is None else key_from_row(row)


_READ_ONLY = "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::bool"
# Whoever finds the row locked leaves the note to the one who locked it.
_USED = """
UPDATE api_keys SET last_used_at = now() WHERE prefix = (
    SELECT prefix FROM api_keys
    WHERE prefix = %s AND (last_used_at IS NULL OR last_used_at < now() - make_interval(secs => %s))
    FOR UPDATE SKIP LOCKED
)
"""


def note_use(conn: Connection, prefix: str, *, every_seconds: float) -> None:
    """Write down that the key was used now, at most once in `every_seconds`; nothing on a read replica."""
    row = conn.execute(_READ_ONLY).fetchone()
    if row is not None and not row[0]:
        conn.execute(_USED, (prefix, every_seconds))


def key_from_row(row: tuple[object, ...]) -> ApiKey:
    prefix, key_hash, name, scopes, user_id, created_at, revoked_at, last_used_at = row
    assert isinstance(key_hash, bytes)
    assert isinstance(scopes, list)
    assert isinstance(created_at, datetime)
    return ApiKey(
        prefix=str(prefix),
        hash=key_hash,
        name=str(name),
        scopes=frozenset(KeyScope(scope) for scope in scopes),
        user_id=None if user_id is None else str(user_id),
        created_at=created_at,
        revoked_at=revoked_at if isinstance(revoked_at, datetime) else None,
        last_used_at=last_used_at if isinstance(last_used_at, datetime) else None,
    )
