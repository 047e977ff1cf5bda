"""One user's vectors in memory, searched exactly. Pure (docs/decisions/0007-vector-cache.md)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import simsimd
from numpy.typing import NDArray

from calmem import cosine
from calmem.hits import DenseHit
from calmem.storage.vectors import Marks, Vectors

# Rows of a block: few calls for a long history, little room beyond the last row.
BLOCK_ROWS = 4_096
_FIRST_ROWS = 32


@dataclass(frozen=True, kw_only=True)
class Block:
    """Up to `len(chunk_nos)` vectors. Rows are only ever added, behind those that a reader knows of."""

    chunk_nos: NDArray[np.int64]
    written: NDArray[np.int64]
    halves: NDArray[np.float16]  # (rows, dimension), as stored
    coarse: NDArray[np.int8]  # (rows, dimension), times `scale` nearly the vector
    scale: NDArray[np.float32]
    slack: NDArray[np.float32]  # how far a product with a unit vector may be off when `coarse` is taken
    length: NDArray[np.float32]  # not less than the vector's

    @classmethod
    def empty(cls, rows: int, dimension: int) -> Block:
        return cls(
            chunk_nos=np.empty(rows, np.int64),
            written=np.empty(rows, np.int64),
            halves=np.empty((rows, dimension), np.float16),
            coarse=np.empty((rows, dimension), np.int8),
            scale=np.empty(rows, np.float32),
            slack=np.empty(rows, np.float32),
            length=np.empty(rows, np.float32),
        )

    @property
    def columns(self) -> tuple[NDArray[np.generic], ...]:
        return (self.chunk_nos, self.written, self.halves, self.coarse, self.scale, self.slack, self.length)

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns)

    def put(self, at: int, new: Vectors) -> None:
        rows = slice(at, at + len(new.chunk_nos))
        self.chunk_nos[rows], self.written[rows], self.halves[rows] = new.chunk_nos, new.written, new.halves
        self.coarse[rows], self.scale[rows], self.slack[rows], self.length[rows] = _coarse(new.halves)

    def grown(self, used: int, rows: int) -> Block:
        """The first `used` rows in a block of `rows`."""
        larger = Block.empty(rows, self.halves.shape[1])
        for ours, theirs in zip(larger.columns, self.columns, strict=True):
            ours[:used] = theirs[:used]
        return larger


def _coarse(
    vectors: NDArray[np.float16] | NDArray[np.float32],
) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Eight bits a component, each row by its largest; the bound on what that costs (Cauchy-Schwarz); and on the length."""
    exact = vectors.astype(np.float32)
    scale = np.maximum(np.abs(exact).max(axis=1), np.float32(1e-6)) / np.float32(127)
    coarse = np.rint(exact / scale[:, None]).astype(np.int8)
    missing = np.linalg.norm(exact - coarse * scale[:, None], axis=1)
    length = 1.001 * np.linalg.norm(exact, axis=1)
    rounding = 2 * cosine.sum_error(vectors.shape[1]) * np.maximum(1, length)
    return coarse, scale, (1.001 * missing + rounding).astype(np.float32), length.astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class Held:
    """One user's vectors up to a mark. A later state shares the blocks of an earlier one."""

    removed: str
    filled: int  # the mark `written` of the filling
    written: int  # and of the last extension
    blocks: tuple[Block, ...]
    used: int  # rows of the last block; the others are full

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self.blocks)

    def extended(self, marks: Marks, new: Vectors) -> Held:
        """With those of the new rows that came after `written`, up to the marks. One caller at a time."""
        if marks.written <= self.written:
            return self
        fresh = new.written > self.written
        chunk_nos, written, halves = new.chunk_nos[fresh], new.written[fresh], new.halves[fresh]
        blocks, used, at = list(self.blocks), self.used, 0
        while at < len(chunk_nos):
            room = len(blocks[-1].chunk_nos) - used if blocks else 0
            if room == 0 and blocks and used < BLOCK_ROWS:
                blocks[-1] = blocks[-1].grown(used, min(BLOCK_ROWS, max(_FIRST_ROWS, 2 * used)))
            elif room == 0:
                blocks.append(Block.empty(_FIRST_ROWS, halves.shape[1]))
                used = 0
            else:
                part = slice(at, at + room)
                blocks[-1].put(used, Vectors(chunk_nos=chunk_nos[part], written=written[part], halves=halves[part]))
                taken = len(chunk_nos[part])
                used, at = used + taken, at + taken
        return replace(self, written=marks.written, blocks=tuple(blocks), used=used)

    def search(self, query: NDArray[np.float32], limit: int, *, hidden: Collection[int], mark: int) -> list[DenseHit]:
        """The `limit` nearest of the vectors that were there at `mark`, exactly: see `cosine.exact`."""
        parts = list(self._parts(mark))
        rows = sum(count for _, count in parts)
        if rows == 0:
            return []
        wanted = limit + len(hidden)  # whatever is hidden, `limit` others are among so many
        coarse, scale, missing, length = _coarse(query[None])
        near, slack = np.empty(rows, np.float32), np.empty(rows, np.float32)
        first = 0
        for block, count in parts:
            part = slice(first, first + count)
            # Without its `out`: with it simsimd 6.5 gives back a None that it does not own, until the interpreter aborts.
            products = np.asarray(simsimd.cdist(coarse, block.coarse[:count], metric="dot"))[0]
            np.multiply(products, block.scale[:count], out=near[part])
            # v.q less v'.q', both rounded, is (v - v').q' + v.(q - q').
            np.multiply(block.length[:count], missing, out=slack[part])
            slack[part] += block.slack[:count] * (length + missing)
            first += count
        near *= scale
        if wanted < rows:
            surely = np.partition(near - slack, rows - wanted)[rows - wanted]
            places = np.flatnonzero(near + slack >= surely)
        else:
            places = np.arange(rows)
        chunk_nos, halves = _gather(parts, places)
        return cosine.best(chunk_nos, cosine.exact(halves, query), limit, hidden=hidden)

    def _parts(self, mark: int) -> Iterator[tuple[Block, int]]:
        """The blocks with the number of their rows that were there at the mark."""
        for place, block in enumerate(self.blocks):
            count = self.used if place == len(self.blocks) - 1 else len(block.chunk_nos)
            if mark < self.written:
                count = int(np.searchsorted(block.written[:count], mark, side="right"))
            if count:
                yield block, count


def _gather(
    parts: Sequence[tuple[Block, int]], places: NDArray[np.intp]
) -> tuple[NDArray[np.int64], NDArray[np.float16]]:
    """Numbers and vectors at the places (ascending, counted over all parts)."""
    ends = np.cumsum([count for _, count in parts])
    cuts = np.searchsorted(places, ends)
    chunk_nos, halves, first, start = [], [], 0, 0
    for (block, _), cut, end in zip(parts, cuts.tolist(), ends.tolist(), strict=True):
        if cut > first:
            inside = places[first:cut] - start
            chunk_nos.append(block.chunk_nos[inside])
            halves.append(block.halves[inside])
        first, start = cut, end
    return np.concatenate(chunk_nos), np.concatenate(halves)


@dataclass(frozen=True, kw_only=True)
class View:
    """One user's vectors as one snapshot of the database has them."""

    held: Held
    mark: int
    hidden: Collection[int]

    def dense(self, query: NDArray[np.float32], limit: int) -> list[DenseHit]:
        """What `storage.search.dense` returns in that snapshot. `query`: (dimension,), float32, unit length."""
        return self.held.search(query, limit, hidden=self.hidden, mark=self.mark)
