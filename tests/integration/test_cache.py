"""The vector cache over a real database: the same hits as Postgres, never older, within its bound."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from calmem import cosine
from calmem.cache import VectorCache
from calmem.settings import Settings
from calmem.storage import users
from calmem.storage.pool import Connection, Database
from calmem.storage.search import Scope
from tests.support.cache import DIMENSION, ask, ask_postgres, fill, numbers, remove_message
from tests.support.processes import eventually
from tests.support.vectors import Told, units


@given(
    seed=st.integers(0, 2**32 - 1),
    before=st.integers(1, 300),
    after=st.integers(0, 100),
    shape=st.sampled_from(["spread", "near one another", "the same again and again"]),
    hide=st.integers(0, 30),
    limit=st.sampled_from([1, 5, 20]),
)
@examples(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_both_ways_equal_brute_force_in_float64(
    database: Database, cache: VectorCache, seed: int, before: int, after: int, shape: str, hide: int, limit: int
) -> None:
    """What is nearest by exact sums over the stored halves; both ways agree to the last bit, also among ties."""
    rng = np.random.default_rng(seed)
    drawn = units(rng, before + after, DIMENSION)
    if shape == "near one another":
        drawn = drawn[0] + rng.standard_normal(drawn.shape).astype(np.float32) * np.float32(1e-3)
        drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    elif shape == "the same again and again":
        drawn = drawn[rng.integers(0, min(3, len(drawn)), len(drawn))]
    query = units(rng, 1, DIMENSION)[0]
    told = Told(database)
    told.add(drawn[:before])
    fill(cache, told)
    told.add(drawn[before:])
    hidden = rng.permutation(list(told.vectors))[:hide].tolist()

    from_cache = ask(cache, told, query, limit, hidden)
    assert from_cache == ask_postgres(told, query, limit, hidden)

    exact = {
        no: float(np.sum(half.astype(np.longdouble) * query.astype(np.longdouble)))
        for no, half in told.vectors.items()
        if no not in hidden
    }
    best = sorted(exact.values(), reverse=True)[:limit]
    assert from_cache is not None
    assert [hit.cosine for hit in from_cache] == pytest.approx(best, abs=1e-13)
    assert [exact[hit.chunk_no] for hit in from_cache] == pytest.approx(best, abs=1e-13)
    assert len({hit.chunk_no for hit in from_cache}) == len(from_cache)


def test_postgres_is_exact_in_a_crowd_larger_than_its_margin(database: Database, cache: VectorCache) -> None:
    """All of these are at the same angle but for their rounding, and rounding the query shuffles them."""
    rng = np.random.default_rng(7)
    query = units(rng, 1, DIMENSION)[0]
    aside = units(rng, 1_500, DIMENSION)
    aside -= (aside @ query)[:, None] * query
    aside /= np.linalg.norm(aside, axis=1, keepdims=True)
    drawn = (np.float32(0.6) * query + np.float32(0.8) * aside).astype(np.float32)
    told = Told(database)
    told.add(drawn)
    exact = {no: float(np.sum(half.astype(np.longdouble) * query)) for no, half in told.vectors.items()}
    wanted = sorted(exact, key=lambda no: (-exact[no], no))[:20]
    found = [exact[no] for no in numbers(ask_postgres(told, query))]
    assert found == pytest.approx([exact[no] for no in wanted], abs=1e-13)
    fill(cache, told)
    assert ask(cache, told, query) == ask_postgres(told, query)
    assert ask_postgres(told, query, 1_500)[:20] == ask_postgres(told, query)


@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 2_500), place=st.integers(0, 2_499))
@examples(max_examples=50, deadline=None)
def test_a_cosine_has_the_same_bits_wherever_its_vector_stands(seed: int, rows: int, place: int) -> None:
    rng = np.random.default_rng(seed)
    halves = units(rng, rows, 384).astype(np.float16)
    query = units(rng, 1, 384)[0]
    place %= rows
    assert cosine.exact(halves, query)[place] == cosine.exact(halves[place : place + 1], query)[0]


def test_what_is_written_later_is_found_at_once_also_with_a_lower_number(
    database: Database, cache: VectorCache
) -> None:
    rng = np.random.default_rng(1)
    query = units(rng, 1, DIMENSION)[0]
    told = Told(database)
    told.add(units(rng, 50, DIMENSION))
    fill(cache, told)
    early, late = told.say(np.stack([query, query]))
    assert early not in numbers(ask(cache, told, query))
    with database.connection() as conn:
        told.write(conn, [late])
    assert numbers(ask(cache, told, query))[0] == late
    with database.connection() as conn:
        told.write(conn, [early])
    assert numbers(ask(cache, told, query))[:2] == [early, late]


def test_two_writers_of_one_user_take_turns_and_neither_is_missed(database: Database, cache: VectorCache) -> None:
    rng = np.random.default_rng(2)
    query = units(rng, 1, DIMENSION)[0]
    told = Told(database)
    told.add(units(rng, 50, DIMENSION))
    fill(cache, told)
    first, second = told.say(np.stack([query, query]))

    def write_second() -> None:
        with database.connection() as conn:
            told.write(conn, [second])

    with ThreadPoolExecutor(1) as thread:
        with database.connection() as conn:
            told.write(conn, [first])
            other = thread.submit(write_second)
            eventually(lambda: waiting(database), "the second writer waits for the first")
            assert not {first, second} & set(numbers(ask(cache, told, query)))
        other.result(timeout=60)
    assert numbers(ask(cache, told, query))[:2] == [first, second]


def waiting(database: Database) -> bool:
    with database.connection() as conn:
        row = conn.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()
    return row is not None and row[0] > 0


def remove_session(conn: Connection, told: Told, _: int) -> None:
    assert users.delete_session(conn, told.user_no, told.session_no)["vectors"] > 0


def remove_user(conn: Connection, told: Told, _: int) -> None:
    assert users.delete_user(conn, told.user_no)["users"] == 1


def remove_by_hand(conn: Connection, told: Told, chunk_no: int) -> None:
    assert conn.execute("DELETE FROM chunks WHERE chunk_no = %s", (chunk_no,)).rowcount == 1


@pytest.mark.parametrize("remove", [remove_message, remove_session, remove_user, remove_by_hand])
def test_what_was_removed_never_comes_back_and_leaves_every_cache(
    database: Database, cache: VectorCache, remove: Any
) -> None:
    rng = np.random.default_rng(3)
    told, other = Told(database), Told(database)
    nos = told.add(units(rng, 50, DIMENSION))
    other.add(units(rng, 5, DIMENSION))
    elsewhere = VectorCache(database, megabytes=8)
    try:
        for one in (cache, elsewhere):
            fill(one, told)
            fill(one, other)
        query = told.vectors[nos[0]].astype(np.float32)
        with database.connection() as conn:
            remove(conn, told, nos[0])
            # Not committed: everybody else still has it, as in Postgres.
            assert numbers(ask(cache, told, query))[0] == nos[0]
        assert ask(cache, told, query) is None
        assert nos[0] not in numbers(ask_postgres(told, query))
        # Nobody asks here, and it goes all the same.
        eventually(lambda: not elsewhere.holds(told.user_no, 1), "what was removed has left the other cache")
        assert elsewhere.holds(other.user_no, 1)
        assert numbers(ask(cache, other, query)) == numbers(ask_postgres(other, query))
    finally:
        elsewhere.close()


def test_after_a_removal_the_user_is_held_again_without_what_was_removed(
    database: Database, cache: VectorCache
) -> None:
    told = Told(database)
    nos = told.add(units(np.random.default_rng(4), 50, DIMENSION))
    fill(cache, told)
    with database.connection() as conn:
        remove_message(conn, told, nos[7])
    query = told.vectors[nos[7]].astype(np.float32)
    eventually(lambda: ask(cache, told, query) is not None, "the cache answers again")
    hits = ask(cache, told, query, 50)
    assert hits == ask_postgres(told, query, 50)
    assert set(numbers(hits)) == set(nos) - {nos[7]}


def test_vectors_of_an_index_that_is_not_active_any_more_leave(database: Database, cache: VectorCache) -> None:
    told = Told(database)
    told.add(units(np.random.default_rng(5), 5, DIMENSION))
    fill(cache, told)
    with database.connection() as conn:
        conn.execute("UPDATE search_indexes SET state = 'retired'")
        conn.execute(
            "INSERT INTO search_indexes (model, chunk_chars, overlap_chars, state) VALUES ('other', 100, 10, 'active')"
        )
    eventually(lambda: not cache.holds(told.user_no, 1), "the former index has left")
    assert cache.nbytes == 0


def test_many_threads_read_while_one_writes(database: Database, cache: VectorCache) -> None:
    """Whoever asks after a commit has what was committed, however the extensions overlap."""
    rng = np.random.default_rng(13)
    told = Told(database)
    told.add(units(rng, 40, DIMENSION))
    fill(cache, told)
    committed = list(told.vectors)
    done = threading.Event()

    def read() -> int:
        rounds = 0
        while not done.is_set() or rounds == 0:
            known = set(committed)
            hits = ask(cache, told, query, 1_000)
            assert known <= set(numbers(hits))
            assert len(numbers(hits)) == len(set(numbers(hits)))
            rounds += 1
        return rounds

    query = units(rng, 1, DIMENSION)[0]
    with ThreadPoolExecutor(4) as threads:
        readers = [threads.submit(read) for _ in range(4)]
        try:
            for _ in range(40):
                committed.extend(told.add(units(rng, 3, DIMENSION)))
        finally:
            done.set()
        assert all(reader.result() > 0 for reader in readers)
    assert ask(cache, told, query) == ask_postgres(told, query)


def test_narrowed_searches_are_left_to_postgres(database: Database, cache: VectorCache) -> None:
    told = Told(database)
    told.add(units(np.random.default_rng(14), 5, DIMENSION))
    fill(cache, told)
    when = datetime(2025, 1, 1, tzinfo=UTC)
    whole = Scope(user_no=told.user_no, index_no=1)
    with database.connection() as conn:
        assert cache.view(conn, whole, DIMENSION) is not None
        for scope in (
            Scope(user_no=told.user_no, index_no=1, session_no=told.session_no),
            Scope(user_no=told.user_no, index_no=1, since=when),
            Scope(user_no=told.user_no, index_no=1, until=when),
        ):
            assert cache.view(conn, scope, DIMENSION) is None


def test_an_outage_of_the_database_ends_in_no_stale_answer(database_url: str, postgres: Any) -> None:
    with Database(Settings(database_url=database_url)) as database:
        told = Told(database)
        told.add(units(np.random.default_rng(16), 5, DIMENSION))
        opened = VectorCache(database, megabytes=1)
        try:
            fill(opened, told)
            query = units(np.random.default_rng(17), 1, DIMENSION)[0]
            with psycopg.connect(postgres.url("postgres"), autocommit=True) as admin:
                admin.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
                    (psycopg.conninfo.conninfo_to_dict(database_url)["dbname"],),
                )
            assert ask(opened, told, query) == ask_postgres(told, query)
        finally:
            opened.close()
