"""calmem on seven boxes, each a network namespace of its own, that are cut off from one another and come back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import psycopg
import pytest
import redis

from calmem.settings import Settings
from calmem.storage.migrate import migrate
from tests.support import boxes
from tests.support.boxes import Box, Network, NotPermitted
from tests.support.processes import Process, eventually, running
from tests.support.rows import rows
from tests.support.serving import ready

BATCH = 20


@dataclass(frozen=True, kw_only=True)
class Boxes:
    """The boxes, by what runs there, and clients of the two services."""

    network: Network
    postgres: Box
    redis: Box
    ingest_box: Box
    retrieval_box: Box
    settings: Settings
    ingest: httpx.Client
    retrieval: httpx.Client
    logs: dict[str, Process]

    def record(self, user: str, numbers: range) -> None:
        for number in numbers:
            message = {"user_id": user, "session_id": f"{user}-1", "role": "user", "message_id": f"{user}-{number}"}
            content = f"Shelf {number} holds the jar with label {user}{number}q."
            assert self.ingest.post("/v1/messages", json={**message, "content": content}).status_code == 201

    def recall(self, user: str, query: str) -> httpx.Response:
        request = {"user_id": user, "session_id": "now", "query": query, "current_tokens": 0}
        return self.retrieval.post("/v1/recall", json={**request, "context_window_capacity": 1000})

    def finds(self, user: str, number: int) -> bool:
        """Whether a recall answers with the message; it may say 503 or find less while a link is away."""
        answer = self.recall(user, f"What is on shelf {number}, {user}{number}q?")
        assert answer.status_code in (200, 503), answer.text
        return answer.status_code == 200 and f"{user}-{number}" in answer.text

    def count(self, source: str) -> int:
        with psycopg.connect(self.settings.database_url) as conn:
            row = conn.execute(f"SELECT count(*) FROM {source}".encode()).fetchone()
        assert row is not None
        return int(row[0])


@pytest.fixture(scope="module")
def calmem(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Boxes]:
    directory = tmp_path_factory.mktemp("boxes")
    with ExitStack() as stop:
        try:
            network = stop.enter_context(boxes.network())
            named = {name: network.box(name) for name in ("postgres", "redis", "ingest", "retrieval", "sweeper")}
        except NotPermitted as exc:
            pytest.skip(f"no network namespaces here: {exc}")
        settings = Settings(
            database_url=stop.enter_context(boxes.postgres(named["postgres"], directory / "postgres")),
            redis_url=stop.enter_context(boxes.redis(named["redis"], directory / "redis")),
            data_dir=str(model_dir),
            runtime="fastembed",
            allow_open=True,
            lease_seconds=3.0,
            sweep_seconds=0.5,
            claim_messages=BATCH,
            network_timeout_seconds=2,
            connect_timeout_seconds=2,
            pool_wait_seconds=2.0,
            pool_size=3,
            recall_deadline_ms=2_000,
        )
        migrate(settings.database_url)
        logs = {}
        for name in ("ingest", "retrieval", "sweeper"):
            # TCP's own timeouts must not be what ends a recall or lets a record go on.
            own = replace(settings, host=named[name].address, network_timeout_seconds=600)
            command = ["sweeper"] if name == "sweeper" else ["serve", name]
            logs[name] = stop.enter_context(running(command, own, directory / f"{name}.log", within=named[name].within))
        ports = {"ingest": settings.ingest_port, "retrieval": settings.retrieval_port}
        # Longer than the deadline and far shorter than TCP's patience.
        clients = {
            name: stop.enter_context(httpx.Client(base_url=f"http://{named[name].address}:{port}", timeout=20))
            for name, port in ports.items()
        }
        for name, client in clients.items():
            eventually(lambda c=client, p=logs[name]: not p.running or ready(c), f"{name} is ready")  # type: ignore[misc]
            assert logs[name].running, logs[name].text()
        yield Boxes(
            network=network,
            postgres=named["postgres"],
            redis=named["redis"],
            ingest_box=named["ingest"],
            retrieval_box=named["retrieval"],
            settings=settings,
            ingest=clients["ingest"],
            retrieval=clients["retrieval"],
            logs=logs,
        )


@contextmanager
def cut(*some: Box) -> Iterator[None]:
    for box in some:
        box.cut()
    try:
        yield
    finally:
        for box in some:
            box.join()


def events(process: Process, name: str) -> list[dict[str, object]]:
    found = [json.loads(line) for line in process.text().splitlines() if line.startswith("{")]
    return [event for event in found if event["event"] == name]


def test_a_worker_cut_off_in_the_middle_of_its_work(calmem: Boxes, tmp_path: Path) -> None:
    first, second = calmem.network.box("worker1"), calmem.network.box("worker2")
    gate = tmp_path / "gate"
    gated = ["-m", "tests.support.odd_worker", "--gate", str(gate)]
    calmem.record("ada", range(200))
    lost = Process(gated, calmem.settings, tmp_path / "first.log", within=first.within)
    try:
        eventually(gate.with_suffix(".waiting").exists, "the first worker has a batch in its hands")
        assert calmem.count("index_tasks WHERE lease_token IS NOT NULL") == BATCH
        with cut(first):
            gate.touch()
            with running(["worker"], calmem.settings, tmp_path / "second.log", within=second.within):
                eventually(lambda: calmem.count("index_tasks") == 0, "the second worker did all, the batch too")
            eventually(lambda: bool(events(lost, "database_away")), "the first worker noticed by itself")
            assert calmem.count("vectors") == 200
        eventually(lambda: bool(events(lost, "messages_indexed")), "the first worker came back with its batch")
        assert [(late["claimed"], late["count"]) for late in events(lost, "messages_indexed")] == [(BATCH, 0)]
        assert_indexed_once(calmem, 200)
        assert all(calmem.finds("ada", number) for number in (0, BATCH, 199))

        # It goes on where it was cut off, woken through Redis as before.
        calmem.record("ada", range(200, 220))
        with redis.Redis.from_url(calmem.settings.redis_url) as client:
            eventually(lambda: client.llen("rq:queue:calmem-live") == 0, "the first worker takes wake-ups again")
        eventually(lambda: calmem.count("index_tasks") == 0, "the first worker goes on")
        assert_indexed_once(calmem, 220)
        assert lost.running
        assert lost.stop() == 0
    finally:
        if lost.running:
            lost.kill()


def assert_indexed_once(calmem: Boxes, messages: int) -> None:
    counts = rows(calmem.settings)
    assert counts["messages"] == counts["chunks"] == counts["vectors"] == messages
    assert calmem.count("(SELECT DISTINCT message_no FROM chunks) AS m") == messages
    assert counts["index_tasks"] == 0  # those that failed would be there


def test_locks_of_a_process_that_was_cut_off_are_given_up(calmem: Boxes, tmp_path: Path) -> None:
    box = calmem.network.box("holder")
    calmem.record("bob", range(1))
    holder = Process(["-m", "tests.support.lock_holder"], calmem.settings, tmp_path / "holder.log", within=box.within)
    try:
        eventually(lambda: "held" in holder.text(), "the lock is held")
        with cut(box):
            calmem.record("bob", range(1, 2))  # waits for the lock, no longer than the client
    finally:
        holder.kill()


def test_retrieval_cut_off_from_postgres(calmem: Boxes) -> None:
    calmem.record("cleo", range(3))
    eventually(lambda: calmem.finds("cleo", 1), "found before")
    connected = "pg_stat_activity WHERE application_name = 'calmem'"
    assert calmem.count(connected) > 0
    calmem.postgres.cut()
    try:
        for _ in range(calmem.settings.pool_size + 1):  # every connection of the pool is a dead one
            answer = calmem.recall("cleo", "What is on shelf 1?")
            assert answer.status_code == 503, answer.text
            assert answer.headers["content-type"] == "application/problem+json"
            assert "database" in answer.json()["detail"]
        assert calmem.retrieval.get("/healthz").status_code == 200
        assert calmem.retrieval.get("/readyz").json()["status"] == "unready"
    finally:
        calmem.postgres.join()
    eventually(lambda: calmem.finds("cleo", 1), "found again")
    assert calmem.logs["retrieval"].running


def test_ingest_cut_off_from_redis_records(calmem: Boxes, tmp_path: Path) -> None:
    before = calmem.count("messages")
    with cut(calmem.redis):
        calmem.record("dan", range(60))
        # Few waited for Redis, the others went without.
        assert 0 < len(events(calmem.logs["ingest"], "wakeup_lost")) < 30
    assert calmem.count("messages") == before + 60
    with running(["worker"], calmem.settings, tmp_path / "worker.log", within=calmem.ingest_box.within):
        eventually(lambda: calmem.count("index_tasks") == 0, "all is indexed")
