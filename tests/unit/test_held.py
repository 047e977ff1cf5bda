"""Held vectors grow by what is new, each once, a reader sees no more than its mark, and the best are never missed."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from calmem import cosine
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


def shaped(rng: np.random.Generator, shape: str, rows: int, dimension: int) -> NDArray[np.float64]:
    """Vectors that eight bits a component hold badly, or whose products lie close together; unit length or shorter."""
    vectors = rng.standard_normal((rows, dimension))
    if shape == "one large component":
        vectors *= 1e-3
        vectors[np.arange(rows), rng.integers(0, dimension, rows)] = 1
    elif shape == "of all sizes":
        vectors *= 10.0 ** rng.uniform(-8, 0, (rows, dimension))
    elif shape == "equal":
        vectors[:] = vectors[0]
    elif shape == "nearly equal":
        vectors[:] = vectors[0] + 1e-3 * vectors
    elif shape == "signs":
        vectors = np.sign(vectors)
    elif shape == "between two steps":
        vectors[:] = rng.integers(-127, 127, (rows, dimension)) + 0.5
        vectors[:, 0] = 127
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    if shape == "some zero, some subnormal":
        vectors[::3] = 0
        vectors[1::3] *= 1e-6
    return vectors


SHAPES = ("any", "one large component", "of all sizes", "equal", "nearly equal", "signs", "between two steps")


@pytest.mark.parametrize("shape", [*SHAPES, "some zero, some subnormal"])
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    asked=st.sampled_from([*SHAPES, "a row"]),
    rows=st.integers(2, 300),
    dimension=st.sampled_from((8, 31, 64, 384, 512, 1_024)),
)
def test_the_best_are_those_of_all_compared_exactly(
    shape: str, seed: int, asked: str, rows: int, dimension: int
) -> None:
    rng = np.random.default_rng(seed)
    halves = shaped(rng, shape, rows, dimension).astype(np.float16)
    query = shaped(rng, asked, 1, dimension)[0]
    if asked == "a row" and halves[-1].any():
        query = halves[-1].astype(np.float64)
    query = (query / np.linalg.norm(query)).astype(np.float32)
    new = Vectors(chunk_nos=rng.permutation(rows), written=np.arange(1, rows + 1), halves=halves)
    held = Held(removed="", filled=0, written=0, blocks=(), used=0).extended(Marks(written=rows, removed=""), new)
    limit, hidden = int(rng.integers(1, rows)), rng.integers(0, rows, 2).tolist()
    best = cosine.best(new.chunk_nos, cosine.exact(halves, query), limit, hidden=hidden)
    assert held.search(query, limit, hidden=hidden, mark=rows) == best


def test_searching_takes_no_references_that_are_not_its_own() -> None:
    """A C extension that gives back one None too many ends the process sooner or later."""
    held = Held(removed="", filled=0, written=0, blocks=(), used=0).extended(
        Marks(written=20, removed=""), written(1, 20)
    )
    before = sys.getrefcount(None)
    for _ in range(1_000):
        held.search(QUERY, 5, hidden=(), mark=20)
    assert abs(sys.getrefcount(None) - before) < 500
