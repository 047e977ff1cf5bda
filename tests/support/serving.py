"""The two HTTP services as real processes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from calmem.settings import Settings
from calmem_services.local.ports import free_ports
from tests.support.processes import Process, eventually, running

needs_ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")


@dataclass(frozen=True, kw_only=True)
class Served:
    """Clients of the running services, their processes, and the settings with the ports in use."""

    ingest: httpx.Client
    retrieval: httpx.Client
    processes: tuple[Process, Process]
    settings: Settings

    def record(self, content: str, **fields: Any) -> httpx.Response:
        message = {"user_id": "ada", "session_id": "s1", "role": "user", "content": content}
        return self.ingest.post("/v1/messages", json={**message, **fields})

    def recall(self, query: str, **fields: Any) -> httpx.Response:
        request = {"user_id": "ada", "session_id": "s2", "query": query, "current_tokens": 0}
        return self.retrieval.post("/v1/recall", json={**request, "context_window_capacity": 1000, **fields})

    def logs(self) -> str:
        return "".join(process.text() for process in self.processes)


@contextmanager
def serving(settings: Settings, directory: Path) -> Iterator[Served]:
    """`calmem serve ingest` and `calmem serve retrieval`, ready; their logs are in `directory`."""
    ingest_port, retrieval_port = free_ports(2)
    chosen = replace(settings, ingest_port=ingest_port, retrieval_port=retrieval_port)
    with (
        running(["serve", "ingest"], chosen, directory / "ingest.log") as ingest_process,
        running(["serve", "retrieval"], chosen, directory / "retrieval.log") as retrieval_process,
        httpx.Client(base_url=f"http://127.0.0.1:{ingest_port}", timeout=60) as ingest,
        httpx.Client(base_url=f"http://127.0.0.1:{retrieval_port}", timeout=60) as retrieval,
    ):
        for client, process in ((ingest, ingest_process), (retrieval, retrieval_process)):
            eventually(lambda c=client, p=process: not p.running or ready(c), f"{client.base_url} is ready")  # type: ignore[misc]
            assert process.running, process.text()
        yield Served(ingest=ingest, retrieval=retrieval, processes=(ingest_process, retrieval_process), settings=chosen)


def ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False
