"""/metrics of the processes that have no HTTP of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from calmem import Memory, metrics
from calmem.errors import PermanentError
from calmem.settings import Settings
from calmem_services.local.ports import free_ports
from tests.support.processes import eventually, running


def served(port: int, text: str) -> bool:
    try:
        return text in httpx.get(f"http://127.0.0.1:{port}/metrics").text
    except httpx.TransportError:
        return False


def test_a_worker_and_the_sweeper_serve_their_metrics(settings: Settings, memory: Memory, tmp_path: Path) -> None:
    memory.record(user_id="ada", session_id="s1", role="user", content="The boiler is a Vaillant.")
    first, second = free_ports(2)
    with (
        running(["worker"], replace(settings, metrics_port=first), tmp_path / "worker.log"),
        running(["sweeper"], replace(settings, metrics_port=second), tmp_path / "sweeper.log"),
    ):
        eventually(lambda: served(first, "calmem_messages_indexed_total 1.0"), "the worker has counted the message")
        eventually(lambda: served(second, "calmem_wakeups_lost_total"), "the sweeper serves its metrics")


def test_a_taken_port_is_named_and_a_left_one_is_free_again() -> None:
    (port,) = free_ports(1)
    settings = Settings(metrics_port=port)
    for _ in range(2):
        with metrics.exposed(settings):
            assert served(port, "calmem_pending_messages")
            with (
                pytest.raises(PermanentError, match=f"127.0.0.1:{port} .* CALMEM_METRICS_PORT"),
                metrics.exposed(settings),
            ):
                pass
