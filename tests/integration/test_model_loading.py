"""A model that takes long to load, or cannot be loaded. Both are error paths: the loading is replaced."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from calmem import embedding, models, searching
from calmem.embedding import Embedder
from calmem.errors import ModelUnavailable, TransientError
from calmem.memory import Memory
from calmem.model import Recall
from calmem.models import Models
from calmem.queueing import WakeUps
from calmem.recall import Recaller
from calmem.settings import Settings
from calmem.storage import indexes
from calmem.storage.pool import Database
from calmem_services.mcp import server
from calmem_services.mcp.tools import Connection
from calmem_workers.index import Drainer


@pytest.fixture
def indexed(settings: Settings) -> Settings:
    with Memory(settings=settings) as memory:
        memory.record(user_id="ada", session_id="old", role="user", content="The roses by the gate flower again.")
    with Database(settings) as database:
        assert Drainer(database, settings, Models(settings), WakeUps("")).drain() == 1
    return settings


def ask(memory: Memory) -> Recall:
    return memory.recall(user_id="ada", session_id="now", query="roses", current_tokens=0, context_window_capacity=1000)


class SlowLoading:
    """Stands for `embedding.load`: waits until it may go on."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self._load = embedding.load

    def __call__(self, settings: Settings, model: str | None = None) -> Embedder:
        self.begun.set()
        assert self.go_on.wait(60)
        return self._load(settings, model)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowLoading]:
    loading = SlowLoading()
    monkeypatch.setattr(embedding, "load", loading)
    yield loading
    loading.go_on.set()


def test_recalls_do_not_queue_behind_a_model_that_is_being_loaded(
    indexed: Settings, slow: SlowLoading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice as many recalls as there are threads: each answers by words, and none keeps a thread."""
    # Each waits for the model until its deadline; what it then has for loading is too short on a busy machine.
    monkeypatch.setattr(searching, "LOAD_SECONDS", 60.0)
    quick = replace(indexed, pool_size=2, recall_deadline_ms=1_000)
    with Memory(settings=quick) as memory, ThreadPoolExecutor(1) as one:
        first = one.submit(ask, memory)
        assert slow.begun.wait(60)
        for _ in range(16):
            found = ask(memory)
            assert found.degraded is not None
            assert found.degraded.startswith("dense: ")
            assert "words" not in found.degraded
            assert [item.text for item in found.items] == ["The roses by the gate flower again."]
        assert first.result(60).degraded is not None
        slow.go_on.set()
        until = time.monotonic() + 60
        while (found := ask(memory)).degraded is not None and time.monotonic() < until:
            pass
        assert found.degraded is None
        assert "cosine" in found.items[0].scores


def test_a_search_by_mcp_waits_for_the_model(
    indexed: Settings, slow: SlowLoading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_DEADLINE_MS", 2_000)
    query = "Which plants bloom at the entrance?"
    hasty = replace(indexed, recall_deadline_ms=2_000)
    resources = server.Resources(hasty)
    with ThreadPoolExecutor(1) as pool, resources.opened():
        assert slow.begun.wait(60)
        told = pool.submit(resources.memory.tools["search_memory"].run, Connection.of("ada", None), {"query": query})
        # The same search without waiting: when it is back, the tool's own deadline would have passed too.
        with Database(hasty) as database:
            impatient = Recaller(database, hasty, Models(hasty))
            assert impatient.search(user_id="ada", query=query) == []
            still_waiting = not told.done()
            slow.go_on.set()
            impatient.close()
        assert still_waiting
        assert [item["text"] for item in told.result(60)["items"]] == ["The roses by the gate flower again."]


def test_whoever_will_not_wait_is_told_to_try_again(indexed: Settings, slow: SlowLoading) -> None:
    loaded = Models(indexed)
    with Database(indexed) as database, database.connection() as conn:
        index = indexes.active_index(conn)
    with ThreadPoolExecutor(1) as one:
        first = one.submit(loaded.for_index, index)
        assert slow.begun.wait(60)
        with pytest.raises(TransientError, match="being loaded"):
            loaded.for_index(index, wait_seconds=0)
        slow.go_on.set()
        assert loaded.for_index(index) is first.result(60)


def test_a_failure_is_remembered_for_a_while(indexed: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def fail(_: Settings, model: str | None = None) -> Embedder:
        tries.append(model)
        raise ModelUnavailable("no hub can be reached")

    monkeypatch.setattr(embedding, "load", fail)
    with Memory(settings=indexed) as memory:
        for _ in range(5):
            found = ask(memory)
            assert found.degraded == "dense: no hub can be reached"
            assert found.items
        assert len(tries) == 1


def test_a_model_that_is_there_later_is_found(indexed: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = Models(indexed)
    with Database(indexed) as database, database.connection() as conn:
        index = indexes.active_index(conn)
    with monkeypatch.context() as away:
        away.setattr(embedding, "load", _nothing)
        with pytest.raises(ModelUnavailable):
            loaded.for_index(index)
    with pytest.raises(ModelUnavailable, match="nothing here"):
        loaded.for_index(index)
    monkeypatch.setattr(models, "RETRY_SECONDS", 0.0)
    assert loaded.for_index(index).dimension == 384


def _nothing(_: Settings, model: str | None = None) -> Embedder:
    raise ModelUnavailable(f"nothing here for {model}")
