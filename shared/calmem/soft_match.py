"""Soft matching: words of the query that a text says otherwise, by a table of word vectors. English only. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calmem import words

# Cosine of two words from which on they begin to count as the same; at 1 they are.
NEAR = 0.25
_MARK = "\0"
_WORD = re.compile(rf"[a-z]{{2,}}|{_MARK}")
# In place of a row.
_TEXT, _UNKNOWN = -2, -1


@dataclass(frozen=True, kw_only=True)
class WordTable:
    """Vectors of single English words, (words, dimension), unit length; words of one stem share a number in `stems`."""

    rows: Mapping[str, int]
    stems: NDArray[np.int64]
    vectors: NDArray[np.float32]

    @classmethod
    def of(cls, listed: Sequence[str], vectors: NDArray[np.float32]) -> WordTable:
        """A row of `vectors` per word."""
        _, stems = np.unique(words.english_stems(listed), return_inverse=True)
        return cls(rows={word: row for row, word in enumerate(listed)}, stems=stems, vectors=vectors)


def shares(texts: Sequence[str], query: str, table: WordTable, *, speakers: Collection[str] = ()) -> list[float]:
    """For each text the share of the query's words that it has not, but says nearly, 0 to 1; rare ones count more.

    A word that the text has, in whatever form, counts nothing here: BM25 has counted it. How rare a word is goes by
    these texts, as the idf of BM25. The names of `speakers` are left out. Nothing for a query that is not English.
    """
    asked = words.english_words(query, leave_out=speakers)
    known = {word: weight for word, weight in asked.items() if word in table.rows}
    if not known or not texts:
        return [0.0] * len(texts)
    # All texts in one pass, each behind a mark that no text holds: recall waits for this.
    found = _WORD.findall(_MARK + _MARK.join(texts).casefold())
    said = np.array([_TEXT if word == _MARK else table.rows.get(word, _UNKNOWN) for word in found])
    first = np.flatnonzero(said == _TEXT)
    distinct, places = np.unique(said, return_inverse=True)
    queried = [table.rows[word] for word in known]
    near = np.clip((table.vectors[queried] @ table.vectors[distinct].T - NEAR) / (1 - NEAR), 0, 1)
    same = table.stems[queried][:, None] == table.stems[distinct]
    near[:, distinct < 0], same[:, distinct < 0] = 0, False
    softly = np.maximum.reduceat(near[:, places], first, axis=1)
    has = np.logical_or.reduceat(same[:, places], first, axis=1)
    softly[has] = 0
    holding = has.sum(axis=1)
    rarity = np.log(1 + (len(texts) + 0.5 - holding) / (holding + 0.5))
    rarity *= list(known.values())
    # A word that the table lacks is taken for one that no text has.
    unknown = sum(weight for word, weight in asked.items() if word not in known) * np.log(2 * len(texts) + 2)
    shared: list[float] = (rarity @ softly / (rarity.sum() + unknown)).tolist()
    return shared
