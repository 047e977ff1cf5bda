"""Use case: the embedder that belongs to an index."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from calmem import embedding
from calmem.embedding import Embedder
from calmem.errors import ModelUnavailable
from calmem.model import SearchIndex
from calmem.settings import Settings

# Runtimes and the bundled model agree to 0.999 and better; two different models are far below.
SAME_MODEL_COSINE = 0.99


class Models:
    """Loads each index's model once per process. Safe to share between threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._loaded: dict[str, Embedder] = {}
        self._checked: set[int] = set()

    def for_index(self, index: SearchIndex) -> Embedder:
        """The embedder whose vectors may be compared with the index's.

        A model is recognised by what it computes, so that another one under the same name or path never
        mixes in. Raises ModelUnavailable when it cannot be loaded or is another model.
        """
        with self._lock:
            embedder = self._loaded.get(index.model)
            if embedder is None:
                embedder = self._loaded[index.model] = self._load(index)
            if index.index_no not in self._checked and index.probe is not None:
                if not _computes(embedder, index.probe):
                    raise ModelUnavailable(
                        f"the model found for {index.model!r} is not the one the index was made with: its vectors differ. "
                        "Point CALMEM_MODEL_PATH back to the former model, or build a new index for the new one"
                    )
                self._checked.add(index.index_no)
            return embedder

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


def _computes(embedder: Embedder, probe: NDArray[np.float32]) -> bool:
    """Whether the embedder is the model that computed the probe."""
    mine = embedding.probe(embedder)
    return len(mine) == len(probe) and float(mine @ probe) >= SAME_MODEL_COSINE
