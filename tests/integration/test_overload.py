"""More requests than a service can work on: they wait for their turn, and beyond that are told to come again."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import psycopg
import pytest

from calmem.errors import InvalidInput
from calmem.memory import Memory
from calmem.settings import Settings
from calmem_services.http import admission
from calmem_services.ingest.app import create_app as create_ingest
from calmem_services.retrieval.app import create_app as create_retrieval
from tests.support.http import assert_problem, client, until_ready
from tests.support.processes import eventually
from tests.support.rows import rows

MESSAGE = {"user_id": "ada", "session_id": "s1", "role": "user", "content": "The boiler is a Vaillant."}
RECALL = {"user_id": "ada", "session_id": "s2", "query": "boiler", "current_tokens": 0, "context_window_capacity": 1000}


def figure(http: httpx.Client, name: str) -> float:
    lines = [line for line in http.get("/metrics").text.splitlines() if line.startswith(f"{name} ")]
    return float(lines[0].split()[1]) if lines else 0.0


def held(settings: Settings, table: str = "sessions") -> psycopg.Connection[Any]:
    """Whoever wants this table waits until the connection is closed."""
    conn = psycopg.connect(settings.database_url)
    conn.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
    return conn


def at_once(count: int, call: Callable[[], httpx.Response]) -> tuple[ThreadPoolExecutor, list[Future[httpx.Response]]]:
    threads = ThreadPoolExecutor(count)
    return threads, [threads.submit(call) for _ in range(count)]


def test_those_beyond_the_queue_are_refused_at_once_and_nobody_else(settings: Settings) -> None:
    limited = replace(settings, max_concurrent_requests=2, max_waiting_requests=3)
    with client(create_ingest(limited)) as ingest:
        full = figure(ingest, 'calmem_requests_overloaded_total{reason="full"}')
        with held(settings):
            threads, answers = at_once(9, lambda: ingest.post("/v1/messages", json=MESSAGE))
            eventually(lambda: sum(answer.done() for answer in answers) == 4, "four are refused while five wait")
            assert figure(ingest, "calmem_requests_at_work") == 2
            assert figure(ingest, "calmem_requests_waiting") == 3
            assert ingest.get("/healthz").status_code == 200
            assert ingest.get("/readyz").status_code == 200
            for answer in (a.result() for a in answers if a.done()):
                assert assert_problem(answer, 503)["error"] == "TransientError"
                assert answer.headers["retry-after"] == "1"
        with threads:
            statuses = sorted(answer.result().status_code for answer in answers)
        assert statuses == [201] * 5 + [503] * 4
        assert rows(settings)["messages"] == 5
        assert figure(ingest, 'calmem_requests_overloaded_total{reason="full"}') == full + 4
        assert figure(ingest, "calmem_requests_at_work") == figure(ingest, "calmem_requests_waiting") == 0


def test_who_has_waited_too_long_is_refused(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "LONGEST_WAIT_SECONDS", 0.1)
    limited = replace(settings, max_concurrent_requests=1, max_waiting_requests=10)
    with client(create_ingest(limited)) as ingest:
        with held(settings):
            threads, answers = at_once(4, lambda: ingest.post("/v1/messages", json=MESSAGE))
            eventually(lambda: sum(answer.done() for answer in answers) == 3, "three have waited too long")
        with threads:
            assert sorted(answer.result().status_code for answer in answers) == [201, 503, 503, 503]
        assert ingest.post("/v1/messages", json=MESSAGE).status_code == 201, "the turn is free again"


def test_who_sends_slowly_takes_no_turn(settings: Settings) -> None:
    with client(create_ingest(replace(settings, max_concurrent_requests=1, max_waiting_requests=5))) as ingest:
        address = (ingest.base_url.host, ingest.base_url.port or 0)
        head = b"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "
        # One has sent the beginning of a short body, the other so much of a long one that it is not read ahead whole.
        with socket.create_connection(address) as short, socket.create_connection(address) as long:
            short.sendall(head + b'100\r\n\r\n{"user_id"')
            content = json.dumps({**MESSAGE, "session_id": "s9"}).encode().ljust(500_000)
            long.sendall(head + b"500000\r\n\r\n" + content[:200_000])
            for _ in range(20):
                assert ingest.post("/v1/messages", json=MESSAGE).status_code == 201
            long.sendall(content[200_000:])
            assert b" 201 " in long.recv(100)
        assert ingest.post("/v1/messages", json=MESSAGE).status_code == 201, "one went away without having sent all"


def test_a_recall_that_waited_past_its_deadline_is_answered_with_the_facts(settings: Settings) -> None:
    with Memory(settings=settings) as memory:
        memory.record(**MESSAGE)
        memory.remember_fact(user_id="ada", session_id="s2", key="heating", value="gas")
    limited = replace(settings, max_concurrent_requests=1, recall_deadline_ms=3_000)
    with client(create_retrieval(limited)) as retrieval:
        until_ready(retrieval)
        assert retrieval.post("/v1/recall", json=RECALL).json()["items"]
        with held(settings, "fact_versions"):
            threads, [blocking] = at_once(1, lambda: retrieval.get("/v1/facts/history", params=HISTORY))
            eventually(lambda: figure(retrieval, "calmem_requests_at_work") == 1, "the only turn is taken")
            more, [late] = at_once(1, lambda: retrieval.post("/v1/recall", json=RECALL))
            eventually(lambda: figure(retrieval, "calmem_requests_waiting") == 1, "the recall waits")
            with pytest.raises(TimeoutError):
                late.result(timeout=3.1)
        with threads, more:
            assert blocking.result().status_code == 200
            answer = late.result().json()
        assert "past the deadline" in answer["degraded"]
        assert answer["timings_ms"]["total"] > 3_000, "the wait counts"
        assert "gas" in answer["block"]
        assert answer["items"] == []
        assert retrieval.post("/v1/recall", json=RECALL).json()["degraded"] is None


HISTORY = {"user_id": "ada", "session_id": "s2", "key": "heating"}


def test_no_turn_at_all_is_refused_when_the_service_starts(settings: Settings) -> None:
    with pytest.raises(InvalidInput, match="CALMEM_MAX_CONCURRENT_REQUESTS"):
        admission.Admission(create_ingest(settings), settings=replace(settings, max_concurrent_requests=0))
