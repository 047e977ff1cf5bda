"""What is in the tables, and lines to record into them."""

from __future__ import annotations

from collections.abc import Iterable

import psycopg

from calmem.memory import Memory
from calmem.model import Lane
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


def execute(settings: Settings, sql: str) -> list[tuple[object, ...]]:
    """The rows of a statement, none of one that gives none."""
    with psycopg.connect(settings.database_url) as conn:
        cursor = conn.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


def count(settings: Settings, source: str) -> int:
    """The rows of a table, or of whatever may follow FROM."""
    return int(str(execute(settings, f"SELECT count(*) FROM {source}")[0][0]))


def record_lines(memory: Memory, lines: Iterable[str], *, user: str = "ada", lane: Lane = Lane.LIVE) -> list[str]:
    """The lines as messages of the user in one session; their ids."""
    batch = [{"user_id": user, "session_id": f"{user}-1", "role": "user", "content": line} for line in lines]
    return [recorded.message_id for recorded in memory.record_many(batch, lane=lane)]
