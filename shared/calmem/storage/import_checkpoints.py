"""Rows of import_checkpoints: how far an import got."""

from __future__ import annotations

from calmem.model import ImportCheckpoint
from calmem.storage.pool import Connection

_LOAD = "SELECT byte_offset, units, digest, bad FROM import_checkpoints WHERE import_key = %s"


def load(conn: Connection, key: bytes) -> ImportCheckpoint | None:
    row = conn.execute(_LOAD, (key,)).fetchone()
    return None if row is None else ImportCheckpoint(byte_offset=row[0], units=row[1], digest=row[2], bad=row[3])


_SAVE = """
INSERT INTO import_checkpoints (import_key, byte_offset, units, digest, bad) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (import_key) DO UPDATE SET byte_offset = excluded.byte_offset, units = excluded.units,
    digest = excluded.digest, bad = excluded.bad, updated_at = now()
"""


def save(conn: Connection, key: bytes, at: ImportCheckpoint) -> None:
    """Replace the import's checkpoint; everything before it must have been committed."""
    conn.execute(_SAVE, (key, at.byte_offset, at.units, at.digest, at.bad))


def remove(conn: Connection, key: bytes) -> None:
    conn.execute("DELETE FROM import_checkpoints WHERE import_key = %s", (key,))
