"""With memory off for a user the server's own log shows what is read: nothing that remembers."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from calmem.memory import Memory
from calmem.model import Tier
from calmem.settings import Settings
from tests.support.http import services
from tests.support.rows import rows

MEMORY_TABLE = re.compile(r"\b(messages|chunks|vectors|facts|fact_versions|index_tasks)\b")
MESSAGE = {"user_id": "ada", "session_id": "s1", "role": "user", "content": "The gate is green."}
REQUEST: dict[str, Any] = {
    "user_id": "ada",
    "session_id": "s1",
    "query": "gate",
    "current_tokens": 0,
    "context_window_capacity": 1000,
}
FACT = {"user_id": "ada", "session_id": "s1", "key": "drink", "value": "tea"}


class StatementLog:
    """Statements of the test's database from here on, as Postgres logs them."""

    def __init__(self, database_url: str) -> None:
        self._url = database_url
        with psycopg.connect(database_url, autocommit=True) as conn:
            directory, name = (
                conn.execute("SELECT current_setting('data_directory'), current_database()").fetchone() or ()
            )
            conn.execute(f"ALTER DATABASE {name} SET log_statement = 'all'".encode())
        self._file = Path(str(directory)) / "log"
        self._from = 0

    def read(self) -> list[str]:
        """What was logged since the last read."""
        mark = f"mark {datetime.now(UTC).isoformat()}"
        with psycopg.connect(self._url, autocommit=True) as conn:
            conn.execute(f"SELECT '{mark}'".encode())
        logged = self._file.read_bytes()[self._from :]
        self._from += len(logged)
        text = logged.decode("utf-8", "replace")
        assert mark in text
        return [one for one in re.split(r"(?:statement|execute [^:]*): ", text)[1:] if mark not in one]


@pytest.fixture
def statements(settings: Settings) -> StatementLog:
    return StatementLog(settings.database_url)


def touched(statements: list[str]) -> set[str]:
    return {table for one in statements for table in MEMORY_TABLE.findall(one)}


def test_no_call_of_python_reads_or_writes_memory(settings: Settings, statements: StatementLog) -> None:
    with Memory(settings=settings) as memory:
        calls: dict[str, Callable[[], Any]] = {
            "record": lambda: memory.record(**MESSAGE),
            "record_many": lambda: memory.record_many([MESSAGE, {**MESSAGE, "session_id": "new"}]),
            "recall": lambda: memory.recall(**REQUEST),
            "recall of the full window": lambda: memory.recall(**{**REQUEST, "current_tokens": 900}),
            "recall of the active": lambda: memory.recall(**REQUEST, active_from_seq=1),
            "recall in prose": lambda: memory.recall(**REQUEST, style="prose"),
            "search": lambda: memory.search(user_id="ada", query="gate"),
            "search in a session": lambda: memory.search(user_id="ada", query="gate", session_id="s1"),
            "remember": lambda: memory.remember_fact(**FACT),
            "facts": lambda: memory.recall_facts(user_id="ada", pattern="*"),
            "facts of a session": lambda: memory.recall_facts(user_id="ada", session_id="s1"),
            "history": lambda: memory.fact_history(user_id="ada", session_id="s1", key="drink"),
        }
        for name, call in calls.items():
            statements.read()
            call()
            assert touched(statements.read()), f"with memory on, {name} touches memory"

        memory.put_user("ada", memory="off")
        before = rows(settings)
        statements.read()
        answers = {name: call() for name, call in calls.items()}
        logged = statements.read()

    assert any("FROM users" in one for one in logged)
    assert touched(logged) == set()
    assert rows(settings) == before
    recalls = [answer for name, answer in answers.items() if name.startswith("recall")]
    assert [(found.block, found.tokens, found.tier) for found in recalls] == [("", 0, Tier.OFF)] * 4
    assert [(found.items, found.facts, found.degraded) for found in recalls] == [([], [], None)] * 4
    assert not answers["record"].stored
    assert [one.stored for one in answers["record_many"]] == [False, False]
    assert answers["remember"] is None
    for name in ("search", "search in a session", "facts", "facts of a session", "history"):
        assert answers[name] == [], name


def test_no_route_reads_or_writes_memory(settings: Settings, statements: StatementLog) -> None:
    with services(settings) as calmem:
        calls: dict[str, Callable[[], Any]] = {
            "record": lambda: calmem.ingest.post("/v1/messages", json=MESSAGE),
            "batch": lambda: calmem.ingest.post("/v1/messages:batch", json={"messages": [MESSAGE]}),
            "recall": lambda: calmem.retrieval.post("/v1/recall", json=REQUEST),
            "search": lambda: calmem.retrieval.post("/v1/search", json={"user_id": "ada", "query": "gate"}),
            "fact": lambda: calmem.retrieval.put(
                "/v1/sessions/s1/facts/drink", json={"user_id": "ada", "value": "tea"}
            ),
            "facts": lambda: calmem.retrieval.get("/v1/facts", params={"user_id": "ada"}),
        }
        for name, call in calls.items():
            statements.read()
            assert call().is_success
            assert touched(statements.read()), f"with memory on, {name} touches memory"

        assert calmem.ingest.put("/v1/users/ada", json={"memory": "off"}).json()["memory"] == "off"
        before = rows(settings)
        statements.read()
        answers = {name: call() for name, call in calls.items()}
        logged = statements.read()

    assert any("FROM users" in one for one in logged)
    assert touched(logged) == set()
    assert rows(settings) == before
    assert all(answer.is_success for answer in answers.values())
    assert answers["record"].json()["stored"] is False
    recalled = answers["recall"].json()
    assert (recalled["block"], recalled["tokens"], recalled["tier"]) == ("", 0, "off")
    assert (recalled["items"], recalled["facts"]) == ([], [])
    assert answers["search"].json() == {"items": []}
    assert answers["facts"].json() == {"facts": []}
    assert answers["fact"].json() == {"stored": False}
