"""Every process is restarted, one after the other, while clients go on recording and recalling."""

from __future__ import annotations

import http.client
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psycopg

from calmem.settings import Settings
from calmem_services.local.ports import free_ports
from tests.support.processes import Process, eventually
from tests.support.rows import rows
from tests.support.serving import ready, serving

CALMEM = "calmem_services.cli.main"
CLIENTS = 4


class Either:
    """A client of two processes of one service, as docs/several-boxes.md describes it."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._clients = [httpx.Client(base_url=url, timeout=60) for url in urls]
        self.closed = 0

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        """From the first that takes it. A refused connection or one closed before the answer: on to the other."""
        for _ in range(2):
            for client in list(self._clients):
                try:
                    return client.post(path, json=body)
                except httpx.ConnectError:
                    pass
                except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                    self.closed += 1
                self._clients.reverse()
        raise AssertionError("neither of the two takes the request")

    def close(self) -> None:
        for client in self._clients:
            client.close()


class Talker(threading.Thread):
    """One user's host: records a turn and recalls, again and again. `failures`: what it was not answered as promised."""

    def __init__(self, user: str, ingest: Sequence[str], retrieval: Sequence[str]) -> None:
        super().__init__(name=user)
        self.user = user
        self.told: list[str] = []
        self.failures: list[str] = []
        self.stop = threading.Event()
        self._ingest, self._retrieval = Either(ingest), Either(retrieval)

    @property
    def closed(self) -> int:
        return self._ingest.closed + self._retrieval.closed

    def run(self) -> None:
        try:
            while not self.stop.is_set() and not self.failures:
                self._turn(f"{self.user}-{len(self.told)}")
        except Exception as exc:
            self.failures.append(repr(exc))
        finally:
            self._ingest.close()
            self._retrieval.close()

    def _turn(self, message_id: str) -> None:
        message = {"user_id": self.user, "session_id": f"{self.user}-1", "role": "user", "message_id": message_id}
        said = f"The key {message_id}k opens the garden gate."
        stored = self._ingest.post("/v1/messages", {**message, "content": said})
        if stored.status_code not in (200, 201):
            self.failures.append(f"record: {stored.status_code} {stored.text}")
        self.told.append(message_id)
        asked = {"user_id": self.user, "session_id": "now", "query": f"What does {message_id}k open?"}
        found = self._retrieval.post("/v1/recall", {**asked, "current_tokens": 0, "context_window_capacity": 1000})
        if found.status_code != 200 or said not in found.text:
            self.failures.append(f"recall: {found.status_code} {found.text}")


class Calmem:
    """Two processes of each service, a worker and the sweeper, by name."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        ports = free_ports(4)
        self._directory = directory
        self._settings = {
            name: replace(settings, ingest_port=port, retrieval_port=port)
            for name, port in zip(("ingest1", "ingest2", "retrieval1", "retrieval2"), ports, strict=True)
        } | {"worker": settings, "sweeper": settings}
        self.names = list(self._settings)
        self.processes = {name: self._start(name) for name in self.names}
        for name in self.names:
            self.wait(name)

    def urls(self, service: str) -> list[str]:
        return [f"http://127.0.0.1:{self._settings[f'{service}{n}'].ingest_port}" for n in (1, 2)]

    def _start(self, name: str) -> Process:
        service = name.rstrip("12")
        command = [service] if service in ("worker", "sweeper") else ["serve", service]
        log = self._directory / f"{name}.log"
        log.unlink(missing_ok=True)
        return Process(["-m", CALMEM, *command], self._settings[name], log)

    def wait(self, name: str) -> None:
        process = self.processes[name]
        if name == "worker":
            eventually(lambda: "worker_ready" in process.text() or not process.running, f"{name} is ready")
        elif name != "sweeper":
            with httpx.Client(base_url=f"http://127.0.0.1:{self._settings[name].ingest_port}") as client:
                eventually(lambda: ready(client) or not process.running, f"{name} is ready")
        assert process.running, process.text()

    def restart(self, name: str) -> None:
        assert self.processes[name].stop() in (0, -signal.SIGTERM), self.processes[name].text()
        self.processes[name] = self._start(name)
        self.wait(name)

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()


@contextmanager
def talking(talkers: Sequence[Talker]) -> Iterator[None]:
    for talker in talkers:
        talker.start()
    try:
        yield
    finally:
        for talker in talkers:
            talker.stop.set()
        for talker in talkers:
            talker.join()


def test_every_process_restarted_under_load(settings: Settings, tmp_path: Path) -> None:
    with ExitStack() as stop:
        calmem = Calmem(settings, tmp_path)
        stop.callback(calmem.end)
        talkers = [Talker(f"u{n}", calmem.urls("ingest"), calmem.urls("retrieval")) for n in range(CLIENTS)]
        with talking(talkers):
            for name in calmem.names:
                before = [len(talker.told) for talker in talkers]

                def all_go_on(before: list[int] = before) -> bool:
                    moved = all(len(t.told) > n + 3 for t, n in zip(talkers, before, strict=True))
                    return moved or any(t.failures for t in talkers)

                calmem.restart(name)
                eventually(all_go_on, f"every client goes on after the restart of {name}")
        assert [talker.failures for talker in talkers] == [[]] * CLIENTS
        told = {message_id for talker in talkers for message_id in talker.told}
        eventually(lambda: rows(settings)["index_tasks"] == 0, "all is indexed")
        counts = rows(settings)
        assert counts["messages"] == counts["chunks"] == counts["vectors"] == len(told)
        with psycopg.connect(settings.database_url) as conn:
            stored = conn.execute(
                "SELECT message_id, session_no, seq FROM messages ORDER BY session_no, seq"
            ).fetchall()
        assert {message_id for message_id, _, _ in stored} == told
        assert [message_id for message_id, _, _ in stored] == [m for t in sorted_by(stored, talkers) for m in t.told]
        # What no server can help: a connection closed in the very moment of a request. It is rare.
        assert sum(talker.closed for talker in talkers) <= 2


def sorted_by(stored: Sequence[tuple[Any, ...]], talkers: Sequence[Talker]) -> list[Talker]:
    """The clients in the order of their sessions."""
    order = list(dict.fromkeys(str(message_id).split("-")[0] for message_id, _, _ in stored))
    return sorted(talkers, key=lambda talker: order.index(talker.user))


def test_a_kept_connection_is_answered_once_more_after_the_stop(settings: Settings, tmp_path: Path) -> None:
    with serving(settings, tmp_path) as calmem:
        port = calmem.settings.ingest_port
        kept = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        kept.request("GET", "/v1/users/ada")
        kept.getresponse().read()
        assert kept.sock is not None
        process = calmem.processes[0]
        process.signal(signal.SIGTERM)
        eventually(lambda: refused(port), "no new connection is taken")
        kept.request("GET", "/v1/users/ada")
        answer = kept.getresponse()
        assert answer.status == 404
        assert answer.getheader("connection") == "close"
        kept.close()
        assert process.wait() in (0, -signal.SIGTERM)


def refused(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
