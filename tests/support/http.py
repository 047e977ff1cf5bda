"""Both services in this process, behind real sockets, over a test's own servers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from calmem.settings import Settings
from calmem_services.ingest.app import create_app as create_ingest
from calmem_services.retrieval.app import create_app as create_retrieval
from tests.support.processes import eventually
from tests.support.rows import rows


@dataclass(frozen=True, kw_only=True)
class Services:
    """Clients of the two services, and the database behind them."""

    ingest: httpx.Client
    retrieval: httpx.Client
    settings: Settings

    def record(self, **fields: Any) -> httpx.Response:
        message = {"user_id": "ada", "session_id": "s1", "role": "user", "content": "The boiler is a Vaillant."}
        return self.ingest.post("/v1/messages", json={**message, **fields})

    def recall(self, **fields: Any) -> httpx.Response:
        request = {"user_id": "ada", "session_id": "s2", "query": "boiler", "current_tokens": 0}
        return self.retrieval.post("/v1/recall", json={**request, "context_window_capacity": 1000, **fields})

    def rows(self) -> dict[str, int]:
        """Row counts of every table."""
        return rows(self.settings)


@contextmanager
def client(app: FastAPI) -> Iterator[httpx.Client]:
    """A client of the app, which uvicorn serves from a thread for the time of the block."""
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            eventually(lambda: server.started or not thread.is_alive(), "uvicorn has started")
            host, port = listener.getsockname()
            with httpx.Client(base_url=f"http://{host}:{port}", timeout=60) as opened:
                yield opened
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def services(settings: Settings) -> Iterator[Services]:
    with client(create_ingest(settings)) as ingest, client(create_retrieval(settings)) as retrieval:
        yield Services(ingest=ingest, retrieval=retrieval, settings=settings)


def until_ready(*opened: httpx.Client) -> None:
    """The model is loaded in the background; until then a service says 503."""

    def ready() -> bool:
        return all(one.get("/readyz").status_code == 200 for one in opened)

    eventually(ready, "the services are ready")


def assert_problem(response: httpx.Response, status: int, *, field: str | None = None) -> dict[str, Any]:
    """An RFC 9457 document of this status; with `field`, one that names it in the document and to the reader."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert document["status"] == status
    assert document["type"]
    assert document["title"]
    assert document["detail"]
    if field is not None:
        assert document["field"] == field
        assert field in document["detail"]
    return document
