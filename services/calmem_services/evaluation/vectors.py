"""The vectors of queries, computed once per text however many systems and settings ask it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from calmem.embedding import Embedder
from calmem.model import SearchIndex
from calmem.models import Models
from calmem.settings import Settings


class RememberingModels(Models):
    """`Models` whose embedders keep every query's vector: for an evaluation, where the queries are few and repeat."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._kept: dict[int, _Remembering] = {}
        self._keeping = threading.Lock()

    def for_index(self, index: SearchIndex, *, wait_seconds: float | None = None) -> Embedder:
        """See `Models.for_index`."""
        embedder = super().for_index(index, wait_seconds=wait_seconds)
        with self._keeping:
            if index.index_no not in self._kept:
                self._kept[index.index_no] = _Remembering(embedder)
            return self._kept[index.index_no]


class _Remembering:
    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self.name, self.dimension, self.max_pieces = embedder.name, embedder.dimension, embedder.max_pieces
        self.words = embedder.words
        self._vectors: dict[str, NDArray[np.float32]] = {}

    def count_pieces(self, text: str) -> int:
        return self._embedder.count_pieces(text)

    def count_unknown(self, text: str) -> int:
        return self._embedder.count_unknown(text)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self._embedder.embed(texts)

    def embed_query(self, text: str) -> NDArray[np.float32]:
        vector = self._vectors.get(text)
        if vector is None:
            vector = self._vectors[text] = self._embedder.embed_query(text)
        return vector
