"""Held vectors grow by what is new, each once, and a reader sees no more than its mark."""

from __future__ import annotations

import numpy as np

from calmem.held import BLOCK_ROWS, Held
from calmem.storage.vectors import Marks, Vectors
from tests.support.vectors import units

DIMENSION = 8
QUERY = units(np.random.default_rng(1), 1, DIMENSION)[0]


def written(first: int, last: int) -> Vectors:
    """One vector for each mark from `first` to `last`; its chunk has the mark's number."""
    marks = np.arange(first, last + 1)
    halves = units(np.random.default_rng(2), 3 * BLOCK_ROWS, DIMENSION)[marks].astype(np.float16)
    return Vectors(chunk_nos=marks, written=marks, halves=halves)


def seen(held: Held, mark: int) -> list[int]:
    return sorted(hit.chunk_no for hit in held.search(QUERY, 10 * BLOCK_ROWS, hidden=(), mark=mark))


def test_extensions_that_overlap_add_every_vector_once() -> None:
    held = Held(removed="", filled=0, written=0, blocks=(), used=0)
    for first, last in ((1, 3), (2, 40), (1, 40), (30, BLOCK_ROWS + 5), (BLOCK_ROWS, 2 * BLOCK_ROWS + 1)):
        held = held.extended(Marks(written=last, removed=""), written(first, last))
        assert seen(held, last) == list(range(1, last + 1))


def test_a_reader_with_an_older_mark_sees_what_was_there_then() -> None:
    early = Held(removed="", filled=0, written=0, blocks=(), used=0).extended(
        Marks(written=20, removed=""), written(1, 20)
    )
    late = early.extended(Marks(written=BLOCK_ROWS + 9, removed=""), written(21, BLOCK_ROWS + 9))
    assert seen(early, 20) == list(range(1, 21))
    for mark in (0, 1, 20, 21, BLOCK_ROWS, BLOCK_ROWS + 1):
        assert seen(late, mark) == list(range(1, mark + 1))
