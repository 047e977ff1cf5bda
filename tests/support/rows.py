"""How many rows every table has."""

from __future__ import annotations

import psycopg

from calmem.settings import Settings

TABLES = ("users", "sessions", "messages", "index_tasks", "chunks", "vectors", "facts", "fact_versions")


def rows(settings: Settings) -> dict[str, int]:
    """Row counts by table."""
    with psycopg.connect(settings.database_url) as conn:
        counts = {}
        for table in TABLES:
            row = conn.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
            assert row is not None
            counts[table] = int(row[0])
        return counts
