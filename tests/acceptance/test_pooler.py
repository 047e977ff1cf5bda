"""Every process behind pgbouncer in transaction mode, which hands each transaction to another session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from calmem.settings import Settings
from calmem_services.local.postgres import EmbeddedPostgres
from tests.support.pooler import PGBOUNCER, pooler
from tests.support.processes import Process, eventually, running
from tests.support.rows import rows
from tests.support.serving import Served, serving

pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed (Debian's package pgbouncer)")
MESSAGES = 60


@pytest.fixture
def pooled(
    settings: Settings, postgres: EmbeddedPostgres, empty_database_url: str, tmp_path: Path
) -> Iterator[Settings]:
    """Few server sessions for many clients, of a server whose own time zone is not UTC."""
    name = empty_database_url.split("/")[3].partition("?")[0]
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as conn:
        conn.execute(f"ALTER DATABASE {name} SET timezone = 'Asia/Kolkata'".encode())
    with pooler(empty_database_url, tmp_path, connections=4) as url:
        yield replace(settings, database_url=url, cache_megabytes=64)


def test_everything_through_a_pooler(pooled: Settings, tmp_path: Path) -> None:
    migrating = [
        Process(["-m", "calmem_services.cli.main", "db", "migrate"], pooled, tmp_path / f"migrate{number}.log")
        for number in range(3)
    ]
    assert [process.wait() for process in migrating] == [0, 0, 0], [process.text() for process in migrating]
    assert sum("applied" in process.text() for process in migrating) == 1  # the lock let one in at a time
    with (
        serving(pooled, tmp_path) as calmem,
        running(["worker"], pooled, tmp_path / "worker.log", ready="worker_ready") as worker,
        running(["sweeper"], pooled, tmp_path / "sweeper.log") as sweeper,
    ):
        said = "We chose a Vaillant boiler for the cellar."
        when = "2026-03-01T23:30:00+00:00"
        assert calmem.record(said, message_id="boiler", created_at=when).status_code == 201
        batch = [
            {"user_id": f"u{number % 5}", "session_id": f"of{number % 5}", "role": "user", "content": f"Note {number}."}
            for number in range(MESSAGES)
        ]
        assert calmem.ingest.post("/v1/messages:batch", json={"messages": batch}).status_code == 200
        eventually(lambda: rows(pooled)["index_tasks"] == 0, "the worker has indexed all")
        counts = rows(pooled)
        assert counts["messages"] == counts["chunks"] == counts["vectors"] == 1 + MESSAGES

        # Twice: from Postgres, then from the cache, which reads in a transaction of its own kind.
        eventually(lambda: recalls(calmem, "Which boiler did we choose?", said, when), "found by meaning")
        eventually(lambda: cached(calmem), "the cache holds the user's vectors")
        assert recalls(calmem, "Which boiler did we choose?", said, when)

        fact = {"user_id": "ada", "value": "no walnuts"}
        assert calmem.retrieval.put("/v1/sessions/s1/facts/diet", json=fact).status_code == 200
        found = calmem.retrieval.get("/v1/facts", params={"user_id": "ada", "pattern": "d*"})
        assert [one["value"] for one in found.json()["facts"]] == ["no walnuts"]

        stats = Process(["-m", "calmem_services.cli.main", "stats", "--json"], calmem.settings, tmp_path / "stats.log")
        assert stats.wait() == 0, stats.text()
        assert json.loads(stats.text())["pending"] == 0

        gone = calmem.ingest.delete("/v1/messages/boiler", params={"user_id": "ada"})
        assert gone.status_code == 200
        eventually(lambda: not recalls(calmem, "Which boiler did we choose?", said, when), "forgotten")
        assert worker.stop() == 0
        assert sweeper.stop() == 0
    for log in tmp_path.glob("*.log"):
        text = log.read_text("utf-8")
        assert "refused a statement" not in text
        assert "drain_failed" not in text
        assert "database_away" not in text


def recalls(calmem: Served, query: str, wanted: str, when: str) -> bool:
    answer = calmem.recall(query)
    assert answer.status_code == 200, answer.text
    found = [item for item in answer.json()["items"] if item["text"] == wanted]
    assert all(item["created_at"] == when for item in found), found
    return len(found) == 1 and "dense" in found[0]["scores"]


def cached(calmem: Served) -> bool:
    calmem.recall("heating")
    lines = calmem.retrieval.get("/metrics").text.splitlines()
    return any(line.startswith("calmem_cache_users") and float(line.split()[1]) > 0 for line in lines)
