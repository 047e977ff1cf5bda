"""What every embedder promises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from calmem.soft_match import WordTable

# Never changed: an index remembers its model by the vector of this sentence.
PROBE_TEXT = "The lighthouse keeper wrote down every ship that passed, and never lost a page."
# A longer name in front of a chunk would take room from what was said.
_NAME_CHARS = 40
# Of the word pieces of a Chinese text, all-MiniLM-L6-v2 does not know half; of an English one, hardly any.
_MOST_UNKNOWN = 0.2


class Embedder(Protocol):
    """Texts to vectors. Safe to share between threads."""

    name: str
    dimension: int
    max_pieces: int
    words: WordTable | None  # vectors of single words, if it has any

    def count_pieces(self, text: str) -> int:
        """Word pieces of the text as the model sees it, special ones included, however many."""
        ...

    def count_unknown(self, text: str) -> int:
        """Word pieces of the text that stand for "unknown"."""
        ...

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(len(texts), dimension), unit length, in the order of the texts."""
        ...

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """(dimension,), unit length."""
        ...


def probe(embedder: Embedder) -> NDArray[np.float32]:
    """The vector that a model is recognised by, (dimension,)."""
    vector: NDArray[np.float32] = embedder.embed([PROBE_TEXT])[0]
    return vector


def understands(embedder: Embedder, text: str) -> bool:
    """Whether the model's vocabulary has most of the text."""
    return embedder.count_unknown(text) <= _MOST_UNKNOWN * embedder.count_pieces(text)


def embedding_text(name: str | None, text: str) -> str:
    """What is embedded for a chunk: who speaks is part of its meaning when a name is known."""
    return f"{name[:_NAME_CHARS]}: {text}" if name else text
