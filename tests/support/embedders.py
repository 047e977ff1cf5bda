"""An embedder that passes everything on to a real one, for tests that look or meddle at one point."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from calmem.embedding import Embedder


class PassingOn:
    """Answers as `real` does, wherever a subclass says nothing else."""

    def __init__(self, real: Embedder) -> None:
        self._real = real
        self.name, self.dimension, self.max_pieces, self.words = real.name, real.dimension, real.max_pieces, real.words

    def count_pieces(self, text: str) -> int:
        return self._real.count_pieces(text)

    def count_unknown(self, text: str) -> int:
        return self._real.count_unknown(text)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self._real.embed(texts)

    def embed_query(self, text: str) -> NDArray[np.float32]:
        return self._real.embed_query(text)
