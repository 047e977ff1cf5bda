"""Two real retrieval processes with warm caches: what one service forgets, none of them recalls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from calmem.memory import Memory
from calmem.settings import Settings
from calmem_services.http import wire
from calmem_services.local.ports import free_ports
from tests.support.processes import eventually, running

SAID = (
    "My sister adopted two kittens from the shelter.",
    "The dentist moved my appointment to the ninth of May.",
    "We booked a cabin by the lake for the first week of August.",
    "The washing machine leaks when it spins.",
    "I am learning to play the cello since February.",
    "Grandfather's clock stopped at a quarter past four.",
)
KITTENS, CABIN = "Which pets does she have, cats?", "Where are we going on vacation in summer?"


@dataclass(frozen=True, kw_only=True)
class Stack:
    settings: Settings
    ingest: httpx.Client
    first: httpx.Client
    second: httpx.Client

    @property
    def both(self) -> tuple[httpx.Client, httpx.Client]:
        return self.first, self.second

    def record(self, content: str, *, user: str = "ada", session: str = "s1") -> str:
        message = {"user_id": user, "session_id": session, "role": "user", "content": content}
        answer = self.ingest.post("/v1/messages", json=message)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["message_id"])

    def indexed(self) -> bool:
        with psycopg.connect(self.settings.database_url) as conn:
            return conn.execute("SELECT 1 FROM index_tasks").fetchone() is None


@pytest.fixture
def stack(settings: Settings, tmp_path: Path) -> Iterator[Stack]:
    settings = replace(settings, cache_megabytes=16)
    ports = free_ports(3)
    with ExitStack() as opened:
        opened.enter_context(running(["worker"], settings, tmp_path / "worker.log", ready="worker_ready"))
        clients = []
        for name, port in zip(("ingest", "retrieval", "retrieval"), ports, strict=True):
            own = replace(settings, ingest_port=port, retrieval_port=port)
            log = tmp_path / f"{name}-{port}.log"
            opened.enter_context(running(["serve", name], own, log, ready="listening"))
            http = opened.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60))
            eventually(lambda http=http: ready(http), f"{name} is ready")  # type: ignore[misc]  # bound now
            clients.append(http)
        yield Stack(settings=settings, ingest=clients[0], first=clients[1], second=clients[2])


def ready(http: httpx.Client) -> bool:
    try:
        return http.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def search(http: httpx.Client, query: str, *, user: str = "ada") -> list[dict[str, Any]]:
    answer = http.post("/v1/search", json={"user_id": user, "query": query, "k": 50})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


def texts(http: httpx.Client, query: str, *, user: str = "ada") -> list[str]:
    return [item["text"] for item in search(http, query, user=user)]


def metric(http: httpx.Client, line: str) -> float:
    for one in http.get("/metrics").text.splitlines():
        if one.startswith(f"{line} "):
            return float(one.rsplit(" ", 1)[1])
    return 0.0


def hits(http: httpx.Client) -> float:
    return metric(http, 'calmem_cache_searches_total{result="hit"}')


def warm(stack: Stack, *, user: str = "ada") -> None:
    """Search until both processes answer from their caches."""
    for http in stack.both:
        before = hits(http)

        def answered(http: httpx.Client = http, before: float = before) -> bool:
            search(http, KITTENS, user=user)
            return hits(http) > before

        eventually(answered, "the cache answers")


def test_what_is_forgotten_in_one_process_is_recalled_by_none(stack: Stack) -> None:
    ids = [stack.record(one) for one in SAID]
    eventually(stack.indexed, "everything is indexed")
    warm(stack)
    assert all(SAID[0] in texts(http, KITTENS) for http in stack.both)

    gone = stack.ingest.delete(f"/v1/messages/{ids[0]}", params={"user_id": "ada"})
    assert gone.json()["removed"]["vectors"] == 1
    for http in (stack.second, stack.first):
        assert SAID[0] not in texts(http, KITTENS)
    warm(stack)
    for http in stack.both:
        assert SAID[0] not in texts(http, KITTENS)
        assert SAID[2] in texts(http, CABIN)

    new = "Rex, the neighbours' puppy, chewed my slippers."
    stack.record(new, session="s2")
    eventually(stack.indexed, "the new message is indexed")
    for http in stack.both:
        before = hits(http)
        [item] = [item for item in search(http, "Was it the young dog who ate the shoes?") if item["text"] == new]
        assert "cosine" in item["scores"]
        assert hits(http) == before + 1

    assert stack.ingest.delete("/v1/sessions/s1", params={"user_id": "ada"}).status_code == 200
    for http in (stack.second, stack.first):
        assert not set(texts(http, CABIN)) & set(SAID)
    warm(stack)
    assert all(not set(texts(http, CABIN)) & set(SAID) for http in stack.both)

    assert stack.ingest.delete("/v1/users/ada").status_code == 200
    assert all(texts(http, CABIN) == [] for http in stack.both)
    for http in stack.both:
        eventually(lambda http=http: metric(http, "calmem_cache_bytes") == 0, "nothing is held")  # type: ignore[misc]  # bound now


def test_with_and_without_the_cache_the_answers_are_the_same(stack: Stack) -> None:
    for number in range(8):
        for place, one in enumerate(SAID):
            stack.record(f"{one} Entry {number}." if place % 2 else one, session=f"s{number}")
    eventually(stack.indexed, "everything is indexed")
    warm(stack)
    with Memory(settings=replace(stack.settings, cache_megabytes=0)) as plain:
        for query in (KITTENS, CABIN, "the leaking machine", "cello", "zxqv blorp", "clock at four"):
            for active in (None, 1, 3):
                before = hits(stack.first)
                asked: dict[str, Any] = {"user_id": "ada", "session_id": "s3", "query": query, "current_tokens": 100}
                asked |= {"context_window_capacity": 10_000, "active_from_seq": active}
                asked = {name: value for name, value in asked.items() if value is not None}
                answer = stack.first.post("/v1/recall", json=asked).json()
                assert hits(stack.first) == before + 1
                expected = plain.recall(**asked)
                assert answer["degraded"] is expected.degraded is None
                assert answer["block"] == expected.block
                assert answer["items"] == json.loads(json.dumps(wire.recall(expected)))["items"]
