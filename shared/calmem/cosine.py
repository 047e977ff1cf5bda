"""The one exact cosine, so that every way of searching orders chunks alike. Pure."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from calmem.hits import DenseHit

# Rows at a time, so that mass duplicates of one vector need no memory of their size.
_SLICE = 1_024
# Beyond the wanted hits this many are taken by the approximate order and compared exactly.
MARGIN = 56
# How far a float32 sum of `dimension` products of two unit vectors may be off, whatever its order: dimension x 2^-24,
# with room for vectors that are a little longer than 1.
_SUM_ERROR = 2.0**-23


def exact(halves: NDArray[np.float16], query: NDArray[np.float32]) -> NDArray[np.float64]:
    """(n,) inner products of unit vectors (n, dimension) with the query (dimension,), in float64.

    Every product is exact and every row is summed in the same order wherever it stands: equal vectors get equal
    bits, in every process.
    """
    wide = query.astype(np.float64)
    found = np.empty(len(halves))
    for first in range(0, len(halves), _SLICE):
        found[first : first + _SLICE] = np.add.reduce(halves[first : first + _SLICE] * wide, axis=1)
    return found


def sum_error(dimension: int) -> float:
    """A bound on the error of an inner product of unit vectors that was summed in float32."""
    return dimension * _SUM_ERROR


def best(
    chunk_nos: NDArray[np.int64], cosines: NDArray[np.float64], limit: int, *, hidden: Collection[int] = ()
) -> list[DenseHit]:
    """The `limit` best that are not hidden, ties by chunk_no."""
    if hidden:
        seen = ~np.isin(chunk_nos, np.fromiter(hidden, np.int64, len(hidden)))
        chunk_nos, cosines = chunk_nos[seen], cosines[seen]
    order = np.lexsort((chunk_nos, -cosines))[:limit]
    return [
        DenseHit(chunk_no=no, cosine=cosine)
        for no, cosine in zip(chunk_nos[order].tolist(), cosines[order].tolist(), strict=True)
    ]
