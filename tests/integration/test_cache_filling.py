"""Filling the vector cache: within its bound, once, and beside whoever writes or removes meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from calmem.cache import MOST_NEW, VectorCache
from calmem.storage import vectors
from calmem.storage.pool import Connection, Database
from tests.support.cache import DIMENSION, ask, ask_postgres, fill, numbers, remove_message
from tests.support.processes import eventually
from tests.support.vectors import Told, units


def test_two_hundred_users_stay_within_the_bound_and_the_least_recently_used_leave(database: Database) -> None:
    rng = np.random.default_rng(6)
    everybody = [Told(database) for _ in range(200)]
    for told in everybody:
        told.add(units(rng, 60, 384))
    bounded = VectorCache(database, megabytes=2)
    try:
        query = units(rng, 1, 384)[0]
        for told in everybody:
            fill(bounded, told)
            assert bounded.nbytes <= 2 * 2**20
            assert ask(bounded, everybody[0], query) is not None, "the one asked for all the time stays"
        held = [bounded.holds(told.user_no, 1) for told in everybody]
        # 60 chunks take 60 x 1,180 bytes, so that 29 users fit; the last ones, and the first, which is used all the time.
        assert held == [True] + [False] * 171 + [True] * 28
    finally:
        bounded.close()


def test_a_user_larger_than_the_bound_is_left_to_postgres_and_nobody_leaves_for_it(database: Database) -> None:
    rng = np.random.default_rng(8)
    small, large = Told(database), Told(database)
    small.add(units(rng, 10, 384))
    large.add(units(rng, 1_000, 384))
    bounded = VectorCache(database, megabytes=1)
    try:
        fill(bounded, small)
        query = units(rng, 1, 384)[0]
        asked = [ask(bounded, large, query) for _ in range(20)]
        assert asked == [None] * 20
        eventually(lambda: not bounded.filling, "no filling is under way")
        assert not bounded.holds(large.user_no, 1)
        assert bounded.holds(small.user_no, 1)
        # A user who grows past the bound leaves too.
        small.add(units(rng, 950, 384))
        assert numbers(ask(bounded, small, query)) == numbers(ask_postgres(small, query))
        assert not bounded.holds(small.user_no, 1)
        assert bounded.nbytes == 0
    finally:
        bounded.close()


def test_a_thousand_chunks_take_at_most_one_and_a_half_megabytes(database: Database) -> None:
    rng = np.random.default_rng(9)
    told = Told(database)
    told.add(units(rng, 1_000, 384))
    filled = VectorCache(database, megabytes=64)
    try:
        fill(filled, told)
        assert filled.nbytes <= 1_500_000
        for _ in range(10):
            told.add(units(rng, 100, 384))
            assert ask(filled, told, units(rng, 1, 384)[0]) is not None
        assert filled.nbytes <= 3_000_000
    finally:
        filled.close()


def test_many_new_vectors_at_once_are_left_to_postgres_until_the_user_is_filled_anew(
    database: Database, cache: VectorCache
) -> None:
    rng = np.random.default_rng(10)
    told = Told(database)
    told.add(units(rng, 10, DIMENSION))
    fill(cache, told)
    told.add(units(rng, MOST_NEW + 1, DIMENSION))
    query = units(rng, 1, DIMENSION)[0]
    assert ask(cache, told, query) is None
    eventually(lambda: ask(cache, told, query) is not None, "the cache answers again")
    assert ask(cache, told, query) == ask_postgres(told, query)


def test_a_slow_filling_is_done_once_and_holds_up_nobody(
    database: Database, cache: VectorCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real reading, made slow for one user."""
    rng = np.random.default_rng(11)
    slow, other = Told(database), Told(database)
    for told in (slow, other):
        told.add(units(rng, 10, DIMENSION))
    go, read = threading.Event(), []
    real = vectors.read_all

    def read_all(
        conn: Connection, **values: int
    ) -> tuple[vectors.Marks, int, Generator[vectors.Vectors, None, None]] | None:
        read.append(values["user_no"])
        if values["user_no"] == slow.user_no:
            assert go.wait(60)
        return real(conn, **values)

    monkeypatch.setattr(vectors, "read_all", read_all)
    query = units(rng, 1, DIMENSION)[0]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda _: ask(cache, slow, query), range(32))) == [None] * 32
    fill(cache, other)
    assert ask(cache, other, query) == ask_postgres(other, query)
    assert not cache.holds(slow.user_no, 1)
    go.set()
    eventually(lambda: cache.holds(slow.user_no, 1), "the slow filling has ended")
    assert ask(cache, slow, query) == ask_postgres(slow, query)
    assert read.count(slow.user_no) == 1


def test_what_is_written_and_removed_during_a_filling_counts(
    database: Database, cache: VectorCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(12)
    told = Told(database)
    nos = told.add(units(rng, 10, DIMENSION))
    at_snapshot, go = threading.Event(), threading.Event()
    real = vectors.read_all

    def read_all(
        conn: Connection, **values: int
    ) -> tuple[vectors.Marks, int, Generator[vectors.Vectors, None, None]] | None:
        found = real(conn, **values)
        at_snapshot.set()
        assert go.wait(60)
        return found

    query = units(rng, 1, DIMENSION)[0]
    monkeypatch.setattr(vectors, "read_all", read_all)
    ask(cache, told, query)
    assert at_snapshot.wait(60)
    new = told.add(query[None])
    go.set()
    eventually(lambda: cache.holds(told.user_no, 1), "the user is in the cache")
    assert numbers(ask(cache, told, query))[0] == new[0]

    with database.connection() as conn:
        remove_message(conn, told, nos[0])
    at_snapshot.clear()
    go.clear()
    assert ask(cache, told, query) is None
    assert at_snapshot.wait(60)
    with database.connection() as conn:
        remove_message(conn, told, new[0])
    go.set()
    eventually(lambda: ask(cache, told, query) is not None, "the cache answers again")
    assert set(numbers(ask(cache, told, query))) == set(nos[1:])
