"""What a worker is given to do, and what it leaves behind."""

from __future__ import annotations

import psycopg

from calmem.memory import Memory
from calmem.model import Lane
from calmem.settings import Settings

READY = "worker_ready"


def record(memory: Memory, count: int, *, user: str = "ada", lane: Lane = Lane.LIVE, words: int = 8) -> list[str]:
    batch = [
        {
            "user_id": user,
            "session_id": f"{user}-1",
            "role": "user",
            "content": f"Turn {number}: " + "the garden gate is green today " * (words // 6),
        }
        for number in range(count)
    ]
    return [recorded.message_id for recorded in memory.record_many(batch, lane=lane)]


def say(memory: Memory, content: str, *, user: str = "ada") -> str:
    return memory.record(user_id=user, session_id=f"{user}-1", role="user", content=content).message_id


def rows(settings: Settings, sql: str) -> list[tuple[object, ...]]:
    with psycopg.connect(settings.database_url) as conn:
        return conn.execute(sql.encode()).fetchall()


def count(settings: Settings, source: str) -> int:
    return int(str(rows(settings, f"SELECT count(*) FROM {source}")[0][0]))


def indexed_exactly_once(settings: Settings, messages: int) -> bool:
    """No task left, and every message has one set of chunks, each chunk one vector."""
    if count(settings, "index_tasks") > 0:
        return False
    assert count(settings, "messages") == messages
    assert count(settings, "(SELECT DISTINCT message_no FROM chunks) AS m") == messages
    assert count(settings, "(SELECT DISTINCT message_no, start_char FROM chunks) AS c") == count(settings, "chunks")
    assert count(settings, "vectors") == count(settings, "chunks")
    return True
