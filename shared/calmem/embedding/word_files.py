"""The word table of a model: vectors of the single words in its vocabulary, a file beside the model's own."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calmem import stopwords
from calmem.errors import ModelUnavailable
from calmem.soft_match import WordTable

FILE = "words.npz"
# Of 384: the directions in which the words differ most. With all of them soft matching finds no more (0004-ranking.md).
DIMENSIONS = 128


def write(pieces: Mapping[str, int], table: NDArray[np.float32], directory: Path) -> None:
    """From the table that a model embeds its pieces by, (pieces, dimension), the whole English words among them.

    Centred, since all pieces have much in common; then turned to the principal directions (Pearson 1901).
    """
    listed = sorted(
        word
        for word in pieces
        if len(word) > 1 and word.isascii() and word.isalpha() and word.islower() and word not in stopwords.ENGLISH
    )
    vectors = table[[pieces[word] for word in listed]].astype(np.float64)
    vectors -= vectors.mean(axis=0)
    _, directions = np.linalg.eigh(vectors.T @ vectors)  # by rising variance
    vectors = vectors @ directions[:, -DIMENSIONS:]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.savez(directory / FILE, words=np.array(" ".join(listed)), vectors=vectors.astype(np.float16))


def read(directory: Path) -> WordTable | None:
    """The table in a model's directory; None when there is none. Raises ModelUnavailable when it is damaged."""
    path = directory / FILE
    if not path.is_file():
        return None
    try:
        with path.open("rb") as opened, np.load(opened) as file:
            listed, vectors = str(file["words"]).split(" "), file["vectors"].astype(np.float32)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as exc:
        raise ModelUnavailable(f"{path} is damaged: it is no table of words") from exc
    if vectors.ndim != 2 or len(listed) != len(vectors):
        raise ModelUnavailable(f"{path} is damaged: {len(listed)} words and vectors of shape {vectors.shape}")
    return WordTable.of(listed, vectors)
