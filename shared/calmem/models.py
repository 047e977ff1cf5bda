"""Use case: the embedder that belongs to an index."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from calmem import embedding
from calmem.embedding import Embedder
from calmem.errors import CalmemError, ModelUnavailable, TransientError
from calmem.model import SearchIndex
from calmem.settings import Settings
from calmem.storage import indexes
from calmem.storage.pool import Database

# Runtimes and the bundled model agree to 0.999 and better; two different models are far below.
SAME_MODEL_COSINE = 0.99
RETRY_SECONDS = 30.0


class Models:
    """Loads each index's model once per process. Safe to share between threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._loaded: dict[str, Embedder] = {}
        self._failed: dict[str, tuple[float, str]] = {}
        self._checked: set[int] = set()

    def for_index(self, index: SearchIndex, *, wait_seconds: float | None = None) -> Embedder:
        """The embedder whose vectors may be compared with the index's.

        A model is recognised by what it computes, so that another one under the same name or path never
        mixes in. Raises ModelUnavailable when it cannot be loaded or is another model, TransientError when
        another thread is still loading it after `wait_seconds` (default: wait for it).
        """
        # A download takes minutes: a recall must not wait for it, nor keep a thread.
        if not self._lock.acquire(timeout=-1 if wait_seconds is None else wait_seconds):
            raise TransientError("the model is still being loaded")
        try:
            embedder = self._loaded.get(index.model)
            if embedder is None:
                embedder = self._loaded[index.model] = self._load_once(index)
            if index.index_no not in self._checked and index.probe is not None:
                if not _computes(embedder, index.probe):
                    raise ModelUnavailable(
                        f"the model found for {index.model!r} is not the one the index was made with: its vectors differ. "
                        "Point CALMEM_MODEL_PATH back to the former model, or build a new index for the new one"
                    )
                self._checked.add(index.index_no)
            return embedder
        finally:
            self._lock.release()

    def _load_once(self, index: SearchIndex) -> Embedder:
        """A failure is remembered for a while, since finding out may have taken a try of the network."""
        failed_at, reason = self._failed.get(index.model, (float("-inf"), ""))
        if time.monotonic() - failed_at < RETRY_SECONDS:
            raise ModelUnavailable(reason)
        try:
            return self._load(index)
        except ModelUnavailable as exc:
            self._failed[index.model] = (time.monotonic(), str(exc))
            raise

    def _load(self, index: SearchIndex) -> Embedder:
        chosen = self._for(index.model)
        embedder = embedding.load(chosen, index.model)
        if chosen.model_path and index.probe is not None and not _computes(embedder, index.probe):
            # The directory holds the next model already; until a reindex, the index's own is found by its name.
            with suppress(ModelUnavailable):
                return embedding.load(replace(chosen, model_path=""), index.model)
        return embedder

    def _for(self, model: str) -> Settings:
        """`model_path` holds the configured model; an index of another model must not be given it."""
        return self._settings if model == self._settings.model else replace(self._settings, model=model, model_path="")


class ActiveModel:
    """The active index's model, as a service that answers from it needs it: ready, and loaded beforehand."""

    def __init__(self, database: Database, models: Models) -> None:
        self._database = database
        self._models = models

    def check(self, wait_seconds: float | None = 1.0) -> None:
        """Raises CalmemError when the model is not loaded in time (None: however long), or cannot be."""
        with self._database.connection(1.0) as conn:
            index = indexes.active_index(conn)
        self._models.for_index(index, wait_seconds=wait_seconds)

    @contextmanager
    def warming(self) -> Iterator[None]:
        """Load it beside what runs in the block, before anybody asks for it."""
        thread = threading.Thread(target=self._warm, name="warm")
        thread.start()
        try:
            yield
        finally:
            thread.join()

    def _warm(self) -> None:
        # Without a database yet, whoever asks for the model tries again.
        with suppress(CalmemError):
            self.check(None)


def _computes(embedder: Embedder, probe: NDArray[np.float32]) -> bool:
    """Whether the embedder is the model that computed the probe."""
    mine = embedding.probe(embedder)
    return len(mine) == len(probe) and float(mine @ probe) >= SAME_MODEL_COSINE
