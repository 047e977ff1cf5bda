"""A database that is not as calmem needs it: the error says what to do, and never what was said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from calmem.errors import PermanentError, TransientError
from calmem.memory import Memory
from calmem.settings import Settings
from calmem.storage.migrate import migrate
from calmem_services.ingest.app import create_app
from tests.support.http import client

SECRET = "The vault opens with 7351."
TURN: dict[str, Any] = {"user_id": "ada", "session_id": "s1", "role": "user", "content": SECRET}


def run(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        for statement in statements:
            conn.execute(statement.encode())


def writes(memory: Memory) -> list[Callable[[], object]]:
    return [
        lambda: memory.record(**TURN),
        lambda: memory.record_many([TURN]),
        lambda: memory.remember_fact(user_id="ada", session_id="s1", key="code", value=SECRET),
    ]


def set_read_only(url: str) -> None:
    run(
        url,
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$",
    )


@contextmanager
def weak_user(url: str) -> Iterator[str]:
    """The URL for a database user without any right."""
    run(url, "CREATE ROLE weak LOGIN")
    try:
        yield url.replace("postgres@", "weak@", 1)
    finally:
        run(url, "DROP ROLE weak")


def test_a_standby_is_read_and_writing_says_try_again(settings: Settings) -> None:
    with Memory(settings=settings) as memory:
        memory.record(**TURN)
    set_read_only(settings.database_url)
    with Memory(settings=settings) as memory:
        assert memory.search(user_id="ada", query="vault")
        for write in writes(memory):
            with pytest.raises(TransientError, match="takes no writes"):
                write()
    with pytest.raises(TransientError, match="takes no writes"):
        migrate(settings.database_url)
    with client(create_app(settings)) as ingest:
        answer = ingest.post("/v1/messages", json=TURN)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


def test_without_rights_the_error_says_so(settings: Settings) -> None:
    with weak_user(settings.database_url) as url, Memory(url, settings.redis_url) as memory:
        for write in writes(memory):
            with pytest.raises(PermanentError, match="GRANT"):
                write()
        with pytest.raises(PermanentError, match="GRANT"):
            memory.search(user_id="ada", query="vault")
        with pytest.raises(PermanentError, match="may not create"):
            migrate(url)


def test_tables_of_somebody_else_are_left_alone(empty_database_url: str) -> None:
    run(empty_database_url, "CREATE TABLE users (name text)")
    with pytest.raises(PermanentError, match="a database of its own"):
        migrate(empty_database_url)


def test_what_the_database_refuses_is_not_quoted(settings: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    run(settings.database_url, "ALTER TABLE messages ADD COLUMN newer integer NOT NULL")  # a newer schema
    with Memory(settings=settings) as memory, pytest.raises(PermanentError, match="23502") as caught:
        memory.record(**TURN)
    assert SECRET not in str(caught.value)
    with client(create_app(settings)) as ingest:
        answer = ingest.post("/v1/messages", json=TURN)
    assert answer.status_code == 500
    assert SECRET not in answer.text
    assert SECRET not in "".join(capfd.readouterr())
