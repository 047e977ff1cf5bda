"""Several complete calmems in one database, each in a schema of its own (docs/growing.md)."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest

from calmem import Memory
from calmem.settings import Settings
from calmem.storage.migrate import migrate
from calmem_workers.main import run_worker

SAID = {"north": "We decided on SQLite for the stock.", "south": "We decided on paper cards for the stock."}


@pytest.fixture
def schemas(settings: Settings, empty_database_url: str) -> dict[str, Settings]:
    """By role; its schema has its name, and it finds its tables there without being told."""
    found = {}
    with psycopg.connect(empty_database_url, autocommit=True) as conn:
        conn.execute("CREATE EXTENSION vector")
        for name in SAID:
            role = f"{conn.info.dbname}_{name}"
            conn.execute(f"CREATE ROLE {role} LOGIN".encode())
            conn.execute(f"CREATE SCHEMA {role} AUTHORIZATION {role}".encode())
            conn.execute(f"ALTER ROLE {role} SET search_path = {role}, public".encode())
            url = empty_database_url.replace("postgres@", f"{role}@")
            assert migrate(url) != []
            found[name] = replace(settings, database_url=url)
    return found


def test_each_schema_has_its_own_users_ids_and_index(schemas: dict[str, Settings]) -> None:
    for name, settings in schemas.items():
        with Memory(settings=settings) as memory:
            memory.record(user_id="mei", session_id="s1", role="user", content=SAID[name], message_id="m1")
        assert run_worker(settings, burst=True) == 1
    for name, settings in schemas.items():
        with Memory(settings=settings) as memory:
            memory.warm()
            found = memory.recall(
                user_id="mei",
                session_id="s2",
                query="What did we decide for the stock?",
                current_tokens=0,
                context_window_capacity=8_000,
            )
        assert [item.text for item in found.items] == [SAID[name]]
    with Memory(settings=schemas["north"]) as north, Memory(settings=schemas["south"]) as south:
        assert north.delete_user("mei").removed["messages"] == 1
        assert [one.message_id for one in south.messages("mei", "s1")[0]] == ["m1"]
