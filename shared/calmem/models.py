"""Use case: the embedder that belongs to an index."""

from __future__ import annotations

import threading
from dataclasses import replace

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
                embedder = self._loaded[index.model] = embedding.load(self._for(index.model), index.model)
            if index.index_no not in self._checked and index.probe is not None:
                mine = embedding.probe(embedder)
                if len(mine) != len(index.probe) or float(mine @ index.probe) < SAME_MODEL_COSINE:
                    raise ModelUnavailable(
                        f"the model found for {index.model!r} is not the one the index was made with: its vectors differ. "
                        "Point CALMEM_MODEL_PATH back to the former model, or build a new index for the new one"
                    )
                self._checked.add(index.index_no)
            return embedder

    def _for(self, model: str) -> Settings:
        """`model_path` holds the configured model; an index of another model must not be given it."""
        return self._settings if model == self._settings.model else replace(self._settings, model=model, model_path="")
