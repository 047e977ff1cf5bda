"""Steering a reindex, and workers of this process that can be looked at while they build it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import psycopg
from numpy.typing import NDArray

from calmem.embedding import PROBE_TEXT, Embedder
from calmem.memory import Memory
from calmem.model import Reindex, SearchIndex
from calmem.models import Models
from calmem.queueing import WakeUps
from calmem.reindexing import Reindexing
from calmem.settings import Settings
from calmem.storage.pool import Database
from calmem_workers.index import Drainer
from tests.support.embedders import PassingOn
from tests.support.rows import record_lines

PARROT = "He feeds the parrot and the hamster every evening."
Look = Callable[[SearchIndex, Sequence[str]], None]


def steer(settings: Settings, call: Callable[[Reindexing], Reindex]) -> Reindex:
    with Database(settings) as database:
        return call(Reindexing(database, settings, Models(settings), WakeUps(settings.redis_url)))


def state(settings: Settings) -> tuple[SearchIndex, list[Reindex]]:
    with Database(settings) as database:
        return Reindexing(database, settings, Models(settings), WakeUps(settings.redis_url)).status()


class LookedAt(Models):
    """The real models; `look` is called before each batch of texts is embedded, and may raise."""

    def __init__(self, settings: Settings, look: Look) -> None:
        super().__init__(settings)
        self._look = look

    def for_index(self, index: SearchIndex, *, wait_seconds: float | None = None) -> Embedder:
        return _LookedAt(super().for_index(index, wait_seconds=wait_seconds), index, self._look)


class _LookedAt(PassingOn):
    def __init__(self, real: Embedder, index: SearchIndex, look: Look) -> None:
        super().__init__(real)
        self._index, self._look = index, look

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if list(texts) != [PROBE_TEXT]:
            self._look(self._index, texts)
        return super().embed(texts)


def work(settings: Settings, look: Look | None = None) -> int:
    """One worker until it has nothing to do; the number of messages written, in whichever index."""
    models = Models(settings) if look is None else LookedAt(settings, look)
    with Database(settings) as database:
        return Drainer(database, settings, models, WakeUps("")).drain()


def vectors(settings: Settings) -> dict[tuple[int, int], int]:
    """How many, by (index_no, dimension)."""
    with psycopg.connect(settings.database_url) as conn:
        rows = conn.execute("SELECT index_no, vector_dims(embedding), count(*) FROM vectors GROUP BY 1, 2")
        return {(index_no, dimension): count for index_no, dimension, count in rows}


def chunks(settings: Settings) -> dict[int, int]:
    """How many chunks, by index_no."""
    with psycopg.connect(settings.database_url) as conn:
        return dict(conn.execute("SELECT index_no, count(*) FROM chunks GROUP BY 1").fetchall())


def record(settings: Settings, *lines: str, user: str = "ada") -> list[str]:
    with Memory(settings=settings) as memory:
        return record_lines(memory, lines, user=user)


def notes(count: int) -> list[str]:
    return [f"Note {number} about the garden gate and its paint." for number in range(count)]


def best(settings: Settings, query: str, arm: str) -> list[str]:
    """The best item by one arm of the search alone; nothing was skipped."""
    with Memory(settings=settings) as memory:
        found = memory.recall(
            user_id="ada",
            session_id="now",
            query=query,
            current_tokens=0,
            context_window_capacity=8_000,
            arms=(arm,),
            k=1,
        )
    assert found.degraded is None
    return [item.text for item in found.items]
