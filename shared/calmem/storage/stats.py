"""Counts for operators."""

from __future__ import annotations

from calmem.storage.pool import Connection

TABLES = ("users", "sessions", "messages", "chunks", "vectors", "facts")
_COUNTS = "SELECT " + ", ".join(f"(SELECT count(*) FROM {table})" for table in TABLES)
_ESTIMATE = "SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = 'chunks'::regclass"


def counts(conn: Connection) -> dict[str, int]:
    """Rows per table, exact; reads the tables."""
    row = conn.execute(_COUNTS.encode()).fetchone()
    assert row is not None
    return dict(zip(TABLES, row, strict=True))


def estimated_chunks(conn: Connection) -> int:
    """The planner's estimate of all chunks; costs nothing."""
    row = conn.execute(_ESTIMATE).fetchone()
    assert row is not None
    return int(row[0])
