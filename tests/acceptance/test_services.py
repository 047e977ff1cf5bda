"""The HTTP services as real processes: outages, silence of the workers, logs, and a start by five at once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from calmem.settings import Settings
from calmem_services.local.postgres import EmbeddedPostgres
from calmem_services.local.redis import EmbeddedRedis
from tests.support.processes import Process, eventually, running
from tests.support.serving import Served, ready, serving

CALMEM = ["-m", "calmem_services.cli.main"]
CARD = "4111 1111 1111 1111"
PASSWORD = "sesame-hunter2"


def refused_until_it_works(calmem: Served, content: str) -> bool:
    """Record; 503 with a problem document for as long as the database is away, never anything else."""
    answer = calmem.record(content, message_id=content)
    assert answer.status_code in (201, 503), answer.text
    return answer.status_code == 201


def recalled(calmem: Served, query: str, wanted: str) -> bool:
    answer = calmem.recall(query)
    assert answer.status_code in (200, 503), answer.text
    return answer.status_code == 200 and wanted in answer.json()["block"]


def test_postgres_restarted_under_both_services(settings: Settings, postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """Between two requests, and for so long that requests meet no server at all."""
    quick = replace(settings, pool_wait_seconds=1.0, recall_deadline_ms=5_000)
    with serving(quick, tmp_path) as calmem:
        assert calmem.record("The boiler is a Vaillant.").status_code == 201
        assert recalled(calmem, "boiler", "Vaillant")

        postgres.restart()
        eventually(lambda: refused_until_it_works(calmem, "The pump is a Grundfos."), "recording works again")
        eventually(lambda: recalled(calmem, "pump", "Grundfos"), "recall works again")

        postgres.pause()
        try:
            for answer in (calmem.record("lost"), calmem.recall("boiler")):
                assert answer.status_code == 503
                assert answer.headers["content-type"] == "application/problem+json"
            for client in (calmem.ingest, calmem.retrieval):
                assert client.get("/healthz").status_code == 200
                assert client.get("/readyz").json()["status"] == "unready"
        finally:
            postgres.resume()
        eventually(lambda: refused_until_it_works(calmem, "The valve is a Danfoss."), "recording works again")
        eventually(lambda: recalled(calmem, "valve", "Danfoss"), "recall works again")
        for client in (calmem.ingest, calmem.retrieval):
            eventually(lambda c=client: ready(c), "ready again")  # type: ignore[misc]
        assert all(process.running for process in calmem.processes)


def test_workers_that_are_up_and_finish_nothing(settings: Settings, tmp_path: Path) -> None:
    """The odd worker waits at its gate with its batch; ten minutes are played by the database's clock."""
    gate = tmp_path / "gate"
    patient = replace(settings, lease_seconds=60.0)
    worker = Process(["-m", "tests.support.odd_worker", "--gate", str(gate)], patient, tmp_path / "worker.log")
    try:
        with serving(patient, tmp_path) as calmem:
            for number in range(50):
                assert calmem.record(f"Note {number} about the boiler.").status_code == 201
            eventually(gate.with_suffix(".waiting").exists, "the worker has taken a batch")
            for client in (calmem.ingest, calmem.retrieval):
                assert client.get("/readyz").json()["status"] == "ready"
            assert stats(calmem.settings, tmp_path)["status"] == "ok"

            with psycopg.connect(settings.database_url) as conn:
                conn.execute("UPDATE index_tasks SET created_at = created_at - interval '10 minutes'")
            for client in (calmem.ingest, calmem.retrieval):
                body = client.get("/readyz").json()
                assert (body["status"], body["pending"]) == ("degraded", 50)
                assert 600 <= body["oldest_pending_seconds"] < 900
            shown = stats(calmem.settings, tmp_path)
            assert (shown["status"], shown["pending"]) == ("degraded", 50)
            assert 600 <= float(str(shown["oldest_pending_seconds"])) < 900

            assert worker.running
            gate.touch()
            eventually(lambda: calmem.ingest.get("/readyz").json()["pending"] == 0, "the worker goes on")
            assert calmem.retrieval.get("/readyz").json()["status"] == "ready"
            assert stats(calmem.settings, tmp_path)["oldest_pending_seconds"] == 0
    finally:
        worker.kill()


def stats(settings: Settings, directory: Path) -> dict[str, object]:
    """What `calmem stats --json` prints."""
    log = directory / "stats.log"
    log.unlink(missing_ok=True)
    process = Process([*CALMEM, "stats", "--json"], settings, log)
    assert process.wait() == 0, process.text()
    answer = json.loads(process.text())
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize("level", ["info", "debug"])
def test_no_log_of_any_process_holds_text_or_passwords(
    settings: Settings, postgres: EmbeddedPostgres, redis_server: EmbeddedRedis, tmp_path: Path, level: str
) -> None:
    """Through success, refusal and outage. The embedded servers ask for no password, so any will do."""
    secret = replace(
        settings,
        database_url=settings.database_url.replace("postgres@", f"postgres:{PASSWORD}@"),
        log_level=level,
        pool_wait_seconds=1.0,
        recall_deadline_ms=5_000,
    )
    assert PASSWORD in secret.database_url
    with (
        serving(secret, tmp_path) as calmem,
        running(["worker"], secret, tmp_path / "worker.log", ready="worker_ready") as worker,
        running(["sweeper"], secret, tmp_path / "sweeper.log") as sweeper,
    ):
        said = f"My card is {CARD}."
        assert calmem.record(said).status_code == 201
        eventually(lambda: "messages_indexed" in worker.text(), "indexed")
        assert CARD in calmem.recall(said).json()["block"]
        retrieval = calmem.retrieval
        assert retrieval.put("/v1/sessions/s1/facts/card", json={"user_id": "ada", "value": CARD}).is_success
        assert retrieval.get("/v1/facts", params={"user_id": "ada", "pattern": f"*{CARD}*"}).is_success

        assert calmem.record(said, role=CARD).status_code == 422
        assert calmem.record(said, metadata=CARD).status_code == 422
        assert calmem.record(said, created_at=CARD).status_code == 422
        assert calmem.record(said * 100_000).status_code in (413, 422)
        assert calmem.ingest.post("/v1/messages", content=said.encode()).status_code in (400, 415)
        assert calmem.recall(said, since=CARD).status_code == 422
        assert retrieval.get(f"/v1/{CARD}").status_code == 404

        redis_server.stop()
        assert calmem.record(f"Again {CARD}.").status_code == 201
        postgres.pause()
        try:
            assert calmem.record(said).status_code == 503
            assert calmem.recall(said).status_code == 503
            eventually(lambda: "database_away" in worker.text(), "the worker met no Postgres")
            eventually(lambda: sweeper.text().count("\n") > 0, "the sweeper met no Postgres")
        finally:
            postgres.resume()
        redis_server.start()
        eventually(lambda: calmem.ingest.get("/readyz").json().get("pending") == 0, "all is indexed again")

        assert '"request"' in calmem.logs()
        logs = {"services": calmem.logs(), "worker": worker.text(), "sweeper": sweeper.text()}
    for name, log in logs.items():
        assert log, f"{name} logged nothing"
        for hidden in (CARD, CARD.replace(" ", "%20"), CARD.replace(" ", "+"), CARD[:9], PASSWORD):
            assert hidden not in log, f"{name}: {hidden}"


def test_five_processes_that_migrate_at_once(settings: Settings, empty_database_url: str, tmp_path: Path) -> None:
    fresh = replace(settings, database_url=empty_database_url)
    logs = [tmp_path / f"migrate{number}.log" for number in range(5)]
    processes = [Process([*CALMEM, "db", "migrate"], fresh, log) for log in logs]
    assert [process.wait() for process in processes] == [0] * 5, [process.text() for process in processes]

    said = sorted(process.text().strip() for process in processes)
    assert said[1:] == ["up to date"] * 4
    assert said[0].startswith("applied ")
    with serving(fresh, tmp_path) as calmem:
        assert calmem.record("The boiler is a Vaillant.").status_code == 201
        assert recalled(calmem, "boiler", "Vaillant")
