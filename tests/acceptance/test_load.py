"""Many clients at once while a worker indexes, with the default limits: the benchmark's clients, for seconds.

With the tests' long deadline: how soon a slow machine answers is the benchmark's business (benchmarks/load.py).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from benchmarks import load
from calmem.settings import Settings
from tests.support.processes import running
from tests.support.rows import rows
from tests.support.serving import serving

CLIENTS, SECONDS = 50, 3.0


def test_fifty_clients_are_all_served(settings: Settings, tmp_path: Path) -> None:
    with (
        serving(settings, tmp_path) as calmem,
        running(["worker"], settings, tmp_path / "worker.log", ready="worker_ready"),
        running(["sweeper"], settings, tmp_path / "sweeper.log"),
    ):
        found = asyncio.run(load.run(calmem.settings, clients=CLIENTS, seconds=SECONDS))
        assert set(found.statuses) == {("record", 201), ("recall", 200)}, calmem.logs()[-2_000:]
        assert found.errors == 0
        assert rows(settings)["messages"] == found.statuses["record", 201]
        for client in (calmem.ingest, calmem.retrieval):
            assert load.pool_timeouts(str(client.base_url)) == 0


def test_with_more_clients_than_turns_those_refused_come_again(settings: Settings, tmp_path: Path) -> None:
    limited = replace(settings, max_concurrent_requests=2, max_waiting_requests=4)
    with serving(limited, tmp_path) as calmem:
        found = asyncio.run(load.run(calmem.settings, clients=CLIENTS, seconds=SECONDS))
    assert found.errors == 0
    assert found.busy > 0
    assert {status for _, status in found.statuses} == {200, 201, 503}
    assert rows(settings)["messages"] == found.statuses["record", 201]
