"""A worker whose connections are cut, and one that cannot get a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from calmem.memory import Memory
from calmem.settings import Settings
from calmem.storage.migrate import migrate
from tests.support.processes import Process, eventually

# A model that fastembed knows and nobody bundles.
OTHER_MODEL = "BAAI/bge-small-en-v1.5"


def record(settings: Settings, count: int) -> None:
    with Memory(settings=settings) as memory:
        memory.record_many(
            [
                {"user_id": "ada", "session_id": "s1", "role": "user", "content": f"Note {number} about the boiler."}
                for number in range(count)
            ]
        )


def test_connections_cut_in_the_middle_of_a_job(settings: Settings, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    patient = replace(settings, lease_seconds=60.0, max_attempts=1)
    record(patient, 20)
    worker = Process(["-m", "tests.support.odd_worker", "--gate", str(gate)], patient, tmp_path / "worker.log")
    try:
        eventually(gate.with_suffix(".waiting").exists, "the batch is being embedded")
        with psycopg.connect(settings.database_url, autocommit=True) as conn:
            cut = conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ).fetchall()
            assert len(cut) > 0
            gate.touch()

            def counts() -> tuple[int, ...]:
                return (
                    conn.execute(
                        "SELECT (SELECT count(*) FROM index_tasks), (SELECT count(*) FROM vectors), "
                        "(SELECT count(DISTINCT message_no) FROM chunks)"
                    ).fetchone()
                    or ()
                )

            eventually(lambda: counts() == (0, 20, 20), "the batch was written in its only attempt")
        assert worker.running
        record(patient, 1)
        with psycopg.connect(settings.database_url, autocommit=True) as conn:
            eventually(lambda: counts_of(conn) == 21, "the worker lives on")
    finally:
        worker.kill()


def counts_of(conn: psycopg.Connection[tuple[int, ...]]) -> int:
    row = conn.execute("SELECT count(*) FROM vectors").fetchone()
    assert row is not None
    return row[0]


def test_without_network_or_any_model_a_worker_ends_at_once_and_takes_no_job(
    settings: Settings, empty_database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "http_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "")
    migrate(empty_database_url, model=OTHER_MODEL)
    offline = replace(settings, database_url=empty_database_url, model=OTHER_MODEL, data_dir=str(tmp_path / "data"))
    record(offline, 1)

    worker = Process(["-m", "calmem_services.cli.main", "worker"], offline, tmp_path / "worker.log")
    assert worker.wait() != 0
    for way in ("CALMEM_MODEL_PATH", "pip install", "download"):
        assert way in worker.text()
    assert OTHER_MODEL in worker.text()
    assert "Traceback" not in worker.text()
    with psycopg.connect(empty_database_url) as conn:
        assert conn.execute("SELECT attempts, lease_token FROM index_tasks").fetchall() == [(0, None)]
