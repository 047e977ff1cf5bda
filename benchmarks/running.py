"""Embedded servers and real calmem processes for the time of a benchmark."""

from __future__ import annotations

import itertools
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

import httpx
import psycopg

from calmem.settings import Settings
from calmem.storage.migrate import migrate
from calmem_services.local.children import die_with_parent
from calmem_services.local.ports import free_ports
from calmem_services.local.postgres import EmbeddedPostgres
from calmem_services.local.redis import EmbeddedRedis
from calmem_services.local.stack import environment

_WAIT_SECONDS = 300.0
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Bench:
    """Servers of the benchmark's own, and what every part of it needs."""

    postgres: EmbeddedPostgres
    redis: EmbeddedRedis
    directory: Path

    def fresh(self) -> Settings:
        """Settings of a new migrated database; the deadline is long, so that nothing is skipped unseen."""
        name = f"bench_{next(_numbers)}"
        with psycopg.connect(self.postgres.url("postgres"), autocommit=True) as conn:
            conn.execute(f"CREATE DATABASE {name}".encode())
        url = self.postgres.url(name)
        migrate(url)
        ingest, retrieval = free_ports(2)
        return replace(
            Settings.from_env(),
            database_url=url,
            redis_url=self.redis.url,
            data_dir=str(self.directory),
            runtime="fastembed",  # the default; runtimes.py measures the other one
            recall_deadline_ms=30_000,
            ingest_port=ingest,
            retrieval_port=retrieval,
        )

    @contextmanager
    def process(self, *command: str, settings: Settings) -> Iterator[subprocess.Popen[bytes]]:
        """`calmem <command>` until the end of the block."""
        with (self.directory / f"{command[0]}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "calmem_services.cli.main", *command],
                env=environment(settings),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )
            try:
                yield process
            finally:
                process.terminate()
                process.wait(timeout=60)

    @contextmanager
    def service(self, name: str, *, settings: Settings) -> Iterator[httpx.Client]:
        """`calmem serve <name>`, ready, and a client of it."""
        port = settings.ingest_port if name == "ingest" else settings.retrieval_port
        url = settings.url(port)
        with self.process("serve", name, settings=settings) as process, httpx.Client(base_url=url, timeout=60) as http:
            wait_until(lambda: ready(http), f"{name} is ready", process=process)
            yield http


@contextmanager
def bench() -> Iterator[Bench]:
    """Start embedded Postgres and Redis in a temporary directory; all of it is gone at the end, also after SIGTERM."""
    signal.signal(signal.SIGTERM, _leave)
    directory = Path(tempfile.mkdtemp(prefix="calmem-bench-"))
    directory.chmod(0o755)  # the embedded Postgres may run as another user
    postgres, redis = EmbeddedPostgres(directory / "postgres"), EmbeddedRedis(directory / "redis")
    try:
        postgres.start()
        redis.start()
        yield Bench(postgres, redis, directory)
    finally:
        redis.stop()
        postgres.stop()
        shutil.rmtree(directory, ignore_errors=True)


def _leave(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(143)


def wait_until(condition: Callable[[], bool], what: str, *, process: subprocess.Popen[bytes] | None = None) -> None:
    """Look every 10 ms; raises when it takes too long or the process ends."""
    until = time.monotonic() + _WAIT_SECONDS
    while not condition():
        if process is not None and process.poll() is not None:
            raise RuntimeError(f"the process ended before: {what}")
        if time.monotonic() > until:
            raise TimeoutError(f"not within {_WAIT_SECONDS:.0f} s: {what}")
        time.sleep(0.01)


def ready(http: httpx.Client) -> bool:
    """Whether the service behind this client serves."""
    try:
        return http.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def pending(conn: psycopg.Connection[tuple[int]]) -> int:
    """Messages not indexed yet."""
    row = conn.execute("SELECT count(*) FROM index_tasks").fetchone()
    return 0 if row is None else row[0]


def peak_megabytes(pid: int) -> float:
    """The most memory a process has had resident so far (Linux: VmHWM)."""
    return _status_megabytes(pid, "VmHWM")


def resident_megabytes(pid: int) -> float:
    """The memory a process has resident now (Linux: VmRSS)."""
    return _status_megabytes(pid, "VmRSS")


def _status_megabytes(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {name} of process {pid}")


def batches(messages: Sequence[dict[str, str]], size: int) -> Iterator[Sequence[dict[str, str]]]:
    for first in range(0, len(messages), size):
        yield messages[first : first + size]
