"""Use case: the embedder that belongs to an index."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

import numpy as np
import structlog
from numpy.typing import NDArray

from calmem import embedding
from calmem.embedding import Embedder
from calmem.errors import CalmemError, ModelUnavailable, TransientError
from calmem.model import SearchIndex
from calmem.settings import Settings
from calmem.storage import indexes
from calmem.storage.pool import Database

log = structlog.get_logger(__name__)

# Runtimes and the bundled model agree to 0.999 and better; two different models are far below.
SAME_MODEL_COSINE = 0.99
RETRY_SECONDS = 30.0


class Models:
    """Loads each index's model once per process. Safe to share between threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # Guards the dictionary alone; the one of each model is held while that model is being loaded.
        self._lock = threading.Lock()
        self._slots: dict[tuple[str, str], _Slot] = {}

    def for_index(self, index: SearchIndex, *, wait_seconds: float | None = None) -> Embedder:
        """The embedder whose vectors may be compared with the index's.

        A model is recognised by what it computes, so that another one under the same name or path never
        mixes in. Raises ModelUnavailable when it cannot be loaded or is another model, TransientError when
        another thread is still loading it after `wait_seconds` (default: wait for it).
        """
        slot = self._slot(index)
        # A download takes minutes: a recall must not wait for it, nor keep a thread.
        if not slot.lock.acquire(timeout=-1 if wait_seconds is None else wait_seconds):
            raise TransientError("the model is still being loaded")
        try:
            if slot.embedder is None:
                slot.embedder = self._load_once(index, slot)
            if index.index_no not in slot.checked and index.probe is not None:
                if not _computes(slot.embedder, index.probe):
                    raise ModelUnavailable(
                        f"the model found for {index.model!r} is not the one the index was made with: its vectors differ. "
                        "Point CALMEM_MODEL_PATH back to the former model, or build a new index for the new one "
                        "(`calmem reindex`)"
                    )
                slot.checked.add(index.index_no)
            return slot.embedder
        finally:
            slot.lock.release()

    def prepare(self, index: SearchIndex) -> None:
        """Load the model in the background, so that it is there when recall goes over to the index. Returns at once."""
        slot = self._slot(index)
        with self._lock:
            if slot.prepared_at is not None and time.monotonic() - slot.prepared_at < RETRY_SECONDS:
                return
            if slot.embedder is not None and index.index_no in slot.checked:
                return
            slot.prepared_at = time.monotonic()
        threading.Thread(target=self._prepare, args=(index,), name="prepare-model", daemon=True).start()

    def _prepare(self, index: SearchIndex) -> None:
        try:
            self.for_index(index)
        except CalmemError as exc:
            log.warning("model_not_prepared", index_no=index.index_no, error=str(exc))

    def _slot(self, index: SearchIndex) -> _Slot:
        with self._lock:
            return self._slots.setdefault((index.model, index.model_path), _Slot())

    def _load_once(self, index: SearchIndex, slot: _Slot) -> Embedder:
        """A failure is remembered for a while, since finding out may have taken a try of the network."""
        if slot.failed_at is not None and time.monotonic() - slot.failed_at < RETRY_SECONDS:
            raise ModelUnavailable(slot.reason)
        try:
            return self._load(index)
        except ModelUnavailable as exc:
            slot.failed_at, slot.reason = time.monotonic(), str(exc)
            raise

    def _load(self, index: SearchIndex) -> Embedder:
        chosen = self._for(index)
        embedder = embedding.load(chosen, index.model)
        if chosen.model_path and index.probe is not None and not _computes(embedder, index.probe):
            # The directory holds the next model already; until a reindex, the index's own is found by its name.
            with suppress(ModelUnavailable):
                return embedding.load(replace(chosen, model_path=""), index.model)
        return embedder

    def _for(self, index: SearchIndex) -> Settings:
        """`model_path` holds the configured model; an index of another model must not be given it."""
        if index.model_path:
            return replace(self._settings, model=index.model, model_path=index.model_path)
        if index.model == self._settings.model:
            return self._settings
        return replace(self._settings, model=index.model, model_path="")


@dataclass(kw_only=True)
class _Slot:
    """One model, loaded or not. All but `prepared_at` is guarded by `lock`."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    embedder: Embedder | None = None
    checked: set[int] = field(default_factory=set)
    failed_at: float | None = None
    reason: str = ""
    prepared_at: float | None = None


class ActiveModel:
    """The active index's model, as a service that answers from it needs it: ready, and loaded beforehand."""

    def __init__(self, database: Database, models: Models) -> None:
        self._database = database
        self._models = models

    def check(self, wait_seconds: float | None = 1.0) -> None:
        """Raises CalmemError when the model is not loaded in time (None: however long), or cannot be."""
        with self._database.connection(1.0) as conn:
            active, *beside = indexes.in_use(conn)
        self._models.for_index(active, wait_seconds=wait_seconds)
        for index in beside:
            self._models.prepare(index)

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


def same_model(one: SearchIndex, other: SearchIndex) -> bool:
    """Whether the vectors of both come from the same model, so that one text has the same vector in both."""
    if one.probe is None or other.probe is None or len(one.probe) != len(other.probe):
        return False
    return float(one.probe @ other.probe) >= SAME_MODEL_COSINE


def _computes(embedder: Embedder, probe: NDArray[np.float32]) -> bool:
    """Whether the embedder is the model that computed the probe."""
    mine = embedding.probe(embedder)
    return len(mine) == len(probe) and float(mine @ probe) >= SAME_MODEL_COSINE
