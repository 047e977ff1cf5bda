"""What the word search takes for the number of a user's chunks is what a count would give."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psycopg
import pytest

from calmem.hits import QueryToken
from calmem.settings import Settings
from calmem.storage import search, users
from calmem.storage.pool import Database
from tests.support.vectors import Told, units

_COUNTED = "SELECT user_no, index_no, count(*) FROM vectors GROUP BY user_no, index_no"
_KEPT = "SELECT user_no, index_no, vectors FROM index_sizes WHERE vectors <> 0"


def sizes(settings: Settings, sql: str) -> set[tuple[int, int, int]]:
    with psycopg.connect(settings.database_url) as conn:
        return set(conn.execute(sql.encode()))


def told(database: Database, count: int, seed: int) -> Told:
    new = Told(database)
    new.add(units(np.random.default_rng(seed), count, 384))
    return new


def test_every_way_of_writing_and_removing_vectors_is_counted(settings: Settings, database: Database) -> None:
    ada, bo, cy, di = (told(database, 20, seed) for seed in range(4))
    ada.add(units(np.random.default_rng(9), 5, 384))
    assert sizes(settings, _KEPT) == {(one.user_no, 1, n) for one, n in ((ada, 25), (bo, 20), (cy, 20), (di, 20))}

    with database.connection() as conn:
        users.delete_session(conn, bo.user_no, bo.session_no)
        assert users.delete_message(conn, cy.user_no, f"{cy.user_no}-3")
        users.delete_user(conn, di.user_no)
        conn.execute(
            "DELETE FROM messages WHERE user_no = %s AND seq <= 2", (ada.user_no,)
        )  # by hand, one cascade a row
    assert sizes(settings, _KEPT) == {(ada.user_no, 1, 23), (cy.user_no, 1, 19)} == sizes(settings, _COUNTED)


def test_what_is_rolled_back_is_not_counted(settings: Settings, database: Database) -> None:
    ada = told(database, 4, 1)

    def fail() -> None:
        with database.connection() as conn:
            users.delete_session(conn, ada.user_no, ada.session_no)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert sizes(settings, _KEPT) == {(ada.user_no, 1, 4)}


def test_two_workers_of_one_user_are_both_counted(settings: Settings, database: Database) -> None:
    ada = Told(database)
    nos = ada.say(units(np.random.default_rng(2), 40, 384))

    def write(chunk_no: int) -> None:
        with database.connection() as conn:
            ada.write(conn, [chunk_no])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, nos))
    assert sizes(settings, _KEPT) == {(ada.user_no, 1, 40)}


def test_a_word_in_more_chunks_than_are_counted_is_still_found(database: Database) -> None:
    """A long message that no worker has seen yet counts as one, however many chunks it has."""
    ada = Told(database)
    ada.say(units(np.random.default_rng(1), 6, 384))  # six chunks, without task and vector
    asked = [QueryToken(token=1, weight=1.0, identifier=False)]
    with database.connection() as conn:
        found = search.words(conn, search.Scope(user_no=ada.user_no, index_no=1), asked, 10)
    assert len(found.hits) == 6
    assert all(hit.bm25 > 0 and hit.covered == 1 for hit in found.hits)
