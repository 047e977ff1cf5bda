"""Reads that are each one message: bounded, apart from each other, and made again when their connection was dead."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pytest

from calmem.errors import PermanentError, TransientError
from calmem.settings import Settings
from calmem.storage.pool import Connection, Database
from tests.support.postgres import alter_database


@pytest.fixture
def single(settings: Settings) -> Iterator[Database]:
    """With one connection, so that every call has the same."""
    with Database(replace(settings, pool_size=1)) as database:
        yield database


def backend(conn: Connection) -> int:
    row = conn.execute("SELECT pg_backend_pid()").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("sets", [(), ("standard_conforming_strings = off",), ("bytea_output = escape",)])
def test_several_statements_come_back_in_their_order_with_their_values(
    settings: Settings, sets: tuple[str, ...]
) -> None:
    """The values are written into the message, as text: also where the server reads and writes text in its own way."""
    alter_database(settings.database_url, *sets)
    values = {"a": "O'Brien \\ '' 100 % %(b)s ; -- 周", "b": b"\0\\\xff'", "c": ['a"b', "\\", "{,}"]}

    def call(conn: Connection) -> list[object]:
        cursor = conn.execute("SELECT %(a)s::text; SELECT %(b)s::bytea; SELECT %(c)s::text[]", values)
        found: list[object] = list(cursor)
        while cursor.nextset():
            found += cursor
        return found

    with Database(settings) as database:
        assert database.read(call, 10.0) == [(value,) for value in values.values()]


def test_a_message_is_bounded_and_leaves_nothing_behind(single: Database) -> None:
    shown = "SELECT current_setting('statement_timeout'), current_setting('enable_seqscan')"
    bounded = single.read(lambda conn: conn.execute(shown).fetchone(), 20.0)
    assert bounded is not None
    assert bounded[1] == "off"
    assert 0 < int(bounded[0].removesuffix("ms").removesuffix("s")) <= 20_000
    with single.connection() as conn:
        assert conn.execute(shown).fetchone() == ("0", "on")
        assert conn.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS


def test_a_statement_ends_with_its_time_and_the_connection_serves_the_next(single: Database) -> None:
    pid = single.read(backend, 10.0)
    with pytest.raises(TransientError, match="longer than the time allowed"):
        single.read(lambda conn: conn.execute("SELECT pg_sleep(600)"), 0.2)
    assert single.read(backend, 10.0) == pid


def test_a_limit_of_the_server_on_transactions_is_an_outage(settings: Settings) -> None:
    alter_database(settings.database_url, "transaction_timeout = '100ms'")
    with Database(settings) as database, pytest.raises(TransientError, match="longer than the time allowed"):
        database.read(lambda conn: conn.execute("SELECT pg_sleep(600)"), 10.0)


def test_a_refused_statement_is_not_made_again(single: Database) -> None:
    made: list[float] = []

    def call(conn: Connection) -> None:
        made.append(time.monotonic())
        conn.execute("SELECT 1; SELECT no_such_column")

    with pytest.raises(PermanentError, match="set up"):
        single.read(call, 10.0)
    assert len(made) == 1
    assert single.read(backend, 10.0)


def test_a_read_is_made_again_when_its_connection_turns_out_dead(single: Database, settings: Settings) -> None:
    pid = single.read(backend, 10.0)
    made: list[int] = []

    def call(conn: Connection) -> int:
        made.append(1)
        return backend(conn)

    with psycopg.connect(settings.database_url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))
    assert single.read(call, 30.0) != pid
    assert len(made) == 2


def test_whatever_a_read_left_open_the_next_has_a_transaction(single: Database) -> None:
    def call(conn: Connection) -> None:
        conn.execute("BEGIN")
        raise ZeroDivisionError

    pid = single.read(backend, 10.0)
    with pytest.raises(ZeroDivisionError):
        single.read(call, 10.0)
    with single.connection() as conn:
        assert backend(conn) == pid
        assert conn.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
