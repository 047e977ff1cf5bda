"""Postgres and Redis that still take connections and answer late or not at all (a proxy before the real servers)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest
import redis
from psycopg import conninfo

from calmem import queueing
from calmem.keys import Keys
from calmem.model import KeyScope
from calmem.settings import Settings
from calmem.storage.pool import Database
from tests.support.http import assert_problem, services, until_ready
from tests.support.keys import bearer, make
from tests.support.processes import eventually
from tests.support.serving import serving
from tests.support.slow import SlowProxy, slow

POOL = 3


@pytest.fixture
def postgres_proxy(settings: Settings) -> Iterator[SlowProxy]:
    given = conninfo.conninfo_to_dict(settings.database_url)

    def connect() -> socket.socket:
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{given['host']}/.s.PGSQL.5432")
        return server

    with slow(connect) as proxy:
        yield proxy


@pytest.fixture
def redis_proxy(settings: Settings) -> Iterator[SlowProxy]:
    address = urlsplit(settings.redis_url)
    assert address.hostname is not None
    assert address.port is not None
    with slow(lambda: socket.create_connection((address.hostname or "", address.port or 0))) as proxy:
        yield proxy


def through(settings: Settings, proxy: SlowProxy) -> Settings:
    """Settings with short waits, of a service that reaches Postgres through the proxy."""
    return replace(
        settings,
        database_url=conninfo.make_conninfo(settings.database_url, host="127.0.0.1", port=proxy.port),
        pool_size=POOL,
        pool_wait_seconds=1.0,
        connect_timeout_seconds=2,
        record_timeout_seconds=1.0,
        recall_deadline_ms=300,
    )


def open_connections(settings: Settings) -> int:
    with psycopg.connect(settings.database_url) as conn:
        row = conn.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'calmem' AND datname = current_database()"
        ).fetchone()
    assert row is not None
    return int(row[0])


def test_postgres_that_stalls_and_goes_on(settings: Settings, postgres_proxy: SlowProxy) -> None:
    with services(through(settings, postgres_proxy)) as calmem:

        def record(number: int) -> httpx.Response:
            return calmem.record(message_id=f"during-{number}", session_id=f"during-{number}")

        until_ready(calmem.ingest, calmem.retrieval)
        assert calmem.record(message_id="before").status_code == 201
        assert calmem.recall().json()["items"]

        postgres_proxy.stall()
        # More than there are connections: none of them may keep a thread, a turn or a connection.
        with ThreadPoolExecutor(2 * POOL) as threads:
            recorded = list(threads.map(record, range(2 * POOL)))
            recalled = list(threads.map(lambda _: calmem.recall(), range(2 * POOL)))
        for answer in recorded + recalled:
            assert assert_problem(answer, 503)["error"] == "TransientError"
            assert "retry-after" in answer.headers
        assert calmem.ingest.get("/healthz").status_code == 200
        assert calmem.ingest.get("/readyz").status_code == 503
        assert "calmem_database_up 0.0" in calmem.ingest.get("/metrics").text

        postgres_proxy.resume()
        until_ready(calmem.ingest, calmem.retrieval)
        # Whether a commit that was cut off took place is unknown; saying it again with its id settles that.
        for number in range(2 * POOL):
            answer = record(number)
            assert answer.status_code in (200, 201)
            assert answer.json()["seq"] == 1
        assert {calmem.rows()[table] for table in ("messages", "index_tasks", "sessions", "chunks")} == {2 * POOL + 1}
        assert calmem.recall().json()["items"]
        eventually(lambda: "calmem_requests_at_work 0.0" in calmem.ingest.get("/metrics").text, "no request is at work")
        eventually(lambda: open_connections(settings) <= 2 * POOL, "connections that were given up are closed")


def test_postgres_that_answers_late(settings: Settings, postgres_proxy: SlowProxy) -> None:
    with services(replace(through(settings, postgres_proxy), record_timeout_seconds=30.0)) as calmem:
        until_ready(calmem.ingest, calmem.retrieval)
        assert calmem.record().status_code == 201
        # A recall makes a dozen round trips: of 300 ms it cannot make them all.
        postgres_proxy.delay(0.03)
        answer = calmem.recall()
        assert answer.status_code == 503 or answer.json()["degraded"], answer.text
        assert calmem.record().status_code == 201
        postgres_proxy.resume()
        eventually(lambda: _whole(calmem.recall()), "recall finds everything again")


def _whole(answer: Any) -> bool:
    return answer.status_code == 200 and answer.json()["degraded"] is None and bool(answer.json()["items"])


def test_redis_that_stalls_and_goes_on(settings: Settings, redis_proxy: SlowProxy, tmp_path: Path) -> None:
    with Database(settings) as database:
        key = make(Keys(database), *KeyScope)
    chosen = replace(settings, redis_url=f"redis://127.0.0.1:{redis_proxy.port}/0", rate_limit_per_minute=3)
    with serving(chosen, tmp_path) as calmem:
        calmem.ingest.headers.update(bearer(key))
        assert calmem.record("The boiler is a Vaillant.").status_code == 201

        redis_proxy.stall()
        for _ in range(5):
            assert calmem.record("The cat sleeps on the boiler.").status_code == 201, "and no limit holds"
        assert "wakeup_lost" in calmem.logs()
        assert "rate_limit_unavailable" in calmem.logs()
        metrics = calmem.ingest.get("/metrics").text
        assert "calmem_wakeups_lost_total 5.0" in metrics
        assert "calmem_rate_limit_unchecked_total 5.0" in metrics

        redis_proxy.resume()

        def limited_again() -> bool:
            return calmem.record("The cat sleeps on the boiler.").status_code == 429

        eventually(limited_again, "requests are counted again")
        redis.Redis.from_url(settings.redis_url).flushall()
        assert calmem.record("Awake again.").status_code == 201
        health = queueing.examine(settings.redis_url)
        assert health is not None
        assert health.jobs == 1, "its wake-up has arrived"
