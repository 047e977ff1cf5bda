"""Searches by meaning, from the vector cache and from Postgres, and what is taken away under them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from calmem.cache import VectorCache
from calmem.hits import DenseHit
from calmem.storage import search, users
from calmem.storage.pool import Connection, bound_reads
from calmem.storage.search import Scope
from tests.support.processes import eventually
from tests.support.vectors import Told, units

DIMENSION = 24


def ask(
    cache: VectorCache, told: Told, query: NDArray[np.float32], limit: int = 20, hidden: Sequence[int] = ()
) -> list[DenseHit] | None:
    scope = Scope(user_no=told.user_no, index_no=1, hidden=hidden)
    with told.database.connection() as conn:
        view = cache.view(conn, scope, len(query))
    return None if view is None else view.dense(query, limit)


def ask_postgres(told: Told, query: NDArray[np.float32], limit: int = 20, hidden: Sequence[int] = ()) -> list[DenseHit]:
    with told.database.connection() as conn:
        bound_reads(conn, 30_000)
        return search.dense(conn, Scope(user_no=told.user_no, index_no=1, hidden=hidden), query, limit)


def fill(cache: VectorCache, told: Told) -> None:
    ask(cache, told, units(np.random.default_rng(0), 1, len(next(iter(told.vectors.values()))))[0])
    eventually(lambda: cache.holds(told.user_no, 1), "the user is in the cache")


def numbers(hits: Sequence[DenseHit] | None) -> list[int]:
    assert hits is not None, "the cache did not answer"
    return [hit.chunk_no for hit in hits]


def remove_message(conn: Connection, told: Told, chunk_no: int) -> None:
    assert users.delete_message(conn, told.user_no, told.message_id(chunk_no)) is not None
