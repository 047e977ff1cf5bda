"""/healthz, /readyz and outages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from calmem.memory import Memory
from calmem.model import Lane
from calmem.settings import Settings
from calmem_services.ingest.app import create_app as create_ingest
from calmem_services.local.redis import EmbeddedRedis
from calmem_services.retrieval.app import create_app as create_retrieval
from tests.support.http import assert_problem, client, services, until_ready

NOWHERE = "postgresql://calmem:sesame@127.0.0.1:1/calmem"
MESSAGE = {"user_id": "ada", "session_id": "s1", "role": "user", "content": "hello"}


@pytest.fixture
def away(settings: Settings) -> Settings:
    """Settings of a database that is not there."""
    return replace(settings, database_url=NOWHERE, pool_wait_seconds=0.2, connect_timeout_seconds=1)


def test_ready_when_everything_is_there(settings: Settings) -> None:
    with services(settings) as calmem:
        until_ready(calmem.ingest, calmem.retrieval)
        for one, checks in (
            (calmem.ingest, {"database", "indexing"}),
            (calmem.retrieval, {"database", "model", "indexing"}),
        ):
            answer = one.get("/readyz")
            assert answer.status_code == 200
            body = answer.json()
            assert (body["status"], set(body["checks"].values())) == ("ready", {"ok"})
            assert set(body["checks"]) == checks
            assert (body["pending"], body["failed"]) == (0, 0)
            assert one.get("/healthz").json() == {"status": "ok"}


def test_degraded_names_the_age_of_the_oldest_pending_message(settings: Settings) -> None:
    with services(settings) as calmem:
        for n in range(50):
            calmem.record(message_id=f"m{n}")
        with psycopg.connect(settings.database_url) as conn:
            conn.execute("UPDATE index_tasks SET created_at = created_at - interval '10 minutes'")

        until_ready(calmem.ingest, calmem.retrieval)
        for one in (calmem.ingest, calmem.retrieval):
            answer = one.get("/readyz")
            assert answer.status_code == 200
            body = answer.json()
            assert body["status"] == "degraded"
            assert body["pending"] == 50
            assert 600 <= body["oldest_pending_seconds"] == body["oldest_live_seconds"] < 700
            assert str(body["oldest_live_seconds"]) in body["checks"]["indexing"]


def test_an_import_that_waits_is_no_reason_to_be_degraded(settings: Settings) -> None:
    with services(settings) as calmem:
        calmem.record()
        with Memory(settings=settings) as memory:
            memory.record_many([{**MESSAGE, "session_id": "imported"}] * 5, lane=Lane.BACKFILL)
        with psycopg.connect(settings.database_url) as conn:
            conn.execute("UPDATE index_tasks SET created_at = created_at - interval '1 hour' WHERE lane = 'backfill'")

        until_ready(calmem.ingest, calmem.retrieval)
        for one in (calmem.ingest, calmem.retrieval):
            body = one.get("/readyz").json()
            assert (body["status"], body["checks"]["indexing"], body["pending"]) == ("ready", "ok", 6)
            assert body["oldest_live_seconds"] < 600 < 3_600 <= body["oldest_pending_seconds"]
            ages = dict(
                line.rsplit(" ", 1) for line in one.get("/metrics").text.splitlines() if "oldest_pending" in line
            )
            assert float(ages['calmem_oldest_pending_seconds{lane="live"}']) < 600
            assert 3_600 <= float(ages['calmem_oldest_pending_seconds{lane="backfill"}']) < 4_000


def test_without_its_database_a_service_is_alive_and_not_ready(away: Settings) -> None:
    with services(away) as calmem:
        for one in (calmem.ingest, calmem.retrieval):
            assert one.get("/healthz").status_code == 200
            answer = one.get("/readyz")
            assert answer.status_code == 503
            assert answer.json()["status"] == "unready"
            assert answer.json()["checks"]["database"] != "ok"
            assert answer.json()["oldest_pending_seconds"] is None
            assert "sesame" not in answer.text
            assert "calmem_database_up 0.0" in one.get("/metrics").text


def test_without_its_database_figures_of_the_queue_are_unknown(settings: Settings, away: Settings) -> None:
    with client(create_ingest(settings)) as ingest:
        ingest.post("/v1/messages", json=MESSAGE)
        assert 'calmem_pending_messages{lane="live"} 1.0' in ingest.get("/metrics").text
    with client(create_ingest(away)) as ingest:
        shown = dict(line.rsplit(" ", 1) for line in ingest.get("/metrics").text.splitlines() if line[0] != "#")
    for name in (
        *(f'calmem_{figure}{{lane="live"}}' for figure in ("pending_messages", "oldest_pending_seconds")),
        *(f"calmem_{figure}" for figure in ("leased_messages", "failed_messages", "chunks", "reindex_messages")),
        'calmem_reindex_state{state="building"}',
    ):
        assert shown[name] == "NaN", name


def test_without_its_database_every_route_says_try_again(away: Settings) -> None:
    with services(away) as calmem:
        answers = [
            calmem.record(),
            calmem.ingest.post("/v1/messages:batch", json={"messages": [MESSAGE]}),
            calmem.ingest.get("/v1/users/ada"),
            calmem.ingest.delete("/v1/sessions/s1", params={"user_id": "ada"}),
            calmem.recall(),
            calmem.retrieval.post("/v1/search", json={"user_id": "ada", "query": "q"}),
            calmem.retrieval.put("/v1/sessions/s1/facts/k", json={"user_id": "ada", "value": "v"}),
            calmem.retrieval.get("/v1/facts", params={"user_id": "ada"}),
        ]
    for answer in answers:
        assert_problem(answer, 503)
        assert int(answer.headers["retry-after"]) >= 1
        assert "sesame" not in answer.text


def test_a_database_that_nobody_migrated_is_not_ready_and_says_what_to_do(
    settings: Settings, empty_database_url: str
) -> None:
    with client(create_ingest(replace(settings, database_url=empty_database_url))) as ingest:
        answer = ingest.get("/readyz")
        assert answer.status_code == 503
        assert "calmem db migrate" in answer.text
        assert "calmem db migrate" in ingest.post("/v1/messages", json=MESSAGE).json()["detail"]


def test_without_the_model_retrieval_is_not_ready_and_recall_uses_words(settings: Settings, tmp_path: Path) -> None:
    with client(create_ingest(settings)) as ingest:
        ingest.post("/v1/messages", json={**MESSAGE, "content": "The boiler is a Vaillant."})
    with psycopg.connect(settings.database_url) as conn:
        conn.execute("UPDATE search_indexes SET model = 'no/such-model', dimension = 4, probe = '[1,0,0,0]'")
    with client(create_retrieval(replace(settings, data_dir=str(tmp_path)))) as retrieval:
        ready = retrieval.get("/readyz")
        recalled = retrieval.post(
            "/v1/recall",
            json={
                "user_id": "ada",
                "session_id": "s2",
                "query": "boiler",
                "current_tokens": 0,
                "context_window_capacity": 10,
            },
        )

    assert ready.status_code == 503
    assert ready.json()["checks"]["model"] != "ok"
    assert recalled.status_code == 200
    assert "dense" in recalled.json()["degraded"]
    assert "Vaillant" in recalled.json()["block"]


def test_recording_does_not_need_redis(settings: Settings, redis_server: EmbeddedRedis) -> None:
    redis_server.stop()
    with client(create_ingest(settings)) as ingest:
        assert ingest.post("/v1/messages", json=MESSAGE).status_code == 201
        assert "calmem_wakeups_lost_total 0.0" not in ingest.get("/metrics").text
        assert ingest.get("/readyz").json()["pending"] == 1
