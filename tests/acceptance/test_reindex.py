"""A reindex by real processes: killed, cut off from Redis, and recall goes over in every process without a gap."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
import redis

from calmem.memory import Memory
from calmem.settings import Settings
from tests.support.processes import Process, eventually, running
from tests.support.reindexing import state, steer, vectors, work
from tests.support.serving import Served, serving
from tests.support.tiny_model import write_tiny_model

COUNT = 30
ASKED = "Turn 7 about the garden gate."


@pytest.fixture
def indexed(settings: Settings) -> Settings:
    with Memory(settings=settings) as memory:
        turns = [f"Turn {number} about the garden gate." for number in range(COUNT)]
        memory.record_many([{"user_id": "ada", "session_id": "s1", "role": "user", "content": turn} for turn in turns])
    work(settings)
    return replace(settings, cache_megabytes=16)


def best(served: Served, query: str) -> str:
    """The first item; nothing was skipped."""
    answer = served.recall(query, k=1, context_window_capacity=8_000).json()
    assert answer["degraded"] is None
    return str(answer["items"][0]["text"])


def leased(settings: Settings) -> int:
    with psycopg.connect(settings.database_url) as conn:
        row = conn.execute("SELECT count(*) FROM index_tasks WHERE index_no = 2 AND lease_token IS NOT NULL").fetchone()
    assert row is not None
    return int(row[0])


def test_a_killed_worker_and_a_flushed_redis_lose_nothing_and_recall_goes_over_in_every_process(
    indexed: Settings, tmp_path: Path
) -> None:
    directory = str(write_tiny_model(tmp_path / "tiny", 128, seed=7))
    gate = tmp_path / "gate"
    with serving(indexed, tmp_path) as served:
        assert best(served, ASKED) == ASKED
        steer(indexed, lambda r: r.start(model_path=directory))
        odd = Process(["-m", "tests.support.odd_worker", "--gate", str(gate)], indexed, tmp_path / "odd.log")
        try:
            eventually(lambda: gate.with_suffix(".waiting").exists(), "the worker is in the middle of a batch")
            assert leased(indexed) == COUNT
            assert served.record("The late parrot likes hamsters.").status_code == 201
            assert best(served, "parrot hamsters") == "The late parrot likes hamsters."
        finally:
            odd.kill()
        with redis.Redis.from_url(indexed.redis_url) as queue:
            queue.flushall()
        assert state(indexed)[0].index_no == 1

        def gone_over() -> bool:
            assert best(served, ASKED) == ASKED
            assert best(served, "parrot hamsters") == "The late parrot likes hamsters."
            return state(indexed)[0].index_no == 2

        with (
            running(["worker"], indexed, tmp_path / "worker.log"),
            running(["sweeper"], indexed, tmp_path / "sweeper.log"),
        ):
            eventually(gone_over, "recall has gone over")
            assert best(served, ASKED) == ASKED
            assert vectors(indexed) == {(1, 384): COUNT + 1, (2, 128): COUNT + 1}
            # The former index is still kept up to date, and recall goes back to it.
            served.record("The violin is being repaired.")
            eventually(
                lambda: vectors(indexed) == {(1, 384): COUNT + 2, (2, 128): COUNT + 2}, "both have the new message"
            )
            with running(["reindex", "--rollback"], indexed, tmp_path / "rollback.log") as command:
                assert command.wait() == 0, command.text()
            assert state(indexed)[0].index_no == 1
            assert best(served, "Which instrument is at the repair shop?") == "The violin is being repaired."
