"""What a worker is given to do, and what it leaves behind."""

from __future__ import annotations

from calmem.memory import Memory
from calmem.model import Lane
from calmem.settings import Settings
from tests.support.rows import count, record_lines

READY = "worker_ready"


def record(memory: Memory, number: int, *, user: str = "ada", lane: Lane = Lane.LIVE, words: int = 8) -> list[str]:
    lines = (f"Turn {n}: " + "the garden gate is green today " * (words // 6) for n in range(number))
    return record_lines(memory, lines, user=user, lane=lane)


def say(memory: Memory, content: str, *, user: str = "ada") -> str:
    return memory.record(user_id=user, session_id=f"{user}-1", role="user", content=content).message_id


def indexed_exactly_once(settings: Settings, messages: int) -> bool:
    """No task left, and every message has one set of chunks, each chunk one vector."""
    if count(settings, "index_tasks") > 0:
        return False
    assert count(settings, "messages") == messages
    assert count(settings, "(SELECT DISTINCT message_no FROM chunks) AS m") == messages
    assert count(settings, "(SELECT DISTINCT message_no, start_char FROM chunks) AS c") == count(settings, "chunks")
    assert count(settings, "vectors") == count(settings, "chunks")
    return True
