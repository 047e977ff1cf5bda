"""The whole of calmem on one machine: embedded servers where no URL is set, and every process supervised."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from typing import IO

import httpx
import structlog

from calmem.errors import PermanentError, TransientError
from calmem.settings import PREFIX, Settings, variable
from calmem.storage.migrate import migrate
from calmem_services.local.children import die_with_parent
from calmem_services.local.ports import refuse_taken
from calmem_services.local.postgres import EmbeddedPostgres
from calmem_services.local.redis import EmbeddedRedis

log = structlog.get_logger(__name__)

READY_SECONDS = 60.0
_STOP_SECONDS = 20.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A running stack. `settings` hold the URLs in use."""

    settings: Settings
    ingest_url: str
    retrieval_url: str
    console_url: str | None  # None: it was not asked for
    gateway_url: str | None  # None: no upstream is set, so there is no gateway


def environment(settings: Settings) -> dict[str, str]:
    """The environment of a child process that gets exactly these settings."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return own | {variable(field.name): str(getattr(settings, field.name)) for field in fields(settings)}


@contextmanager
def servers(settings: Settings) -> Iterator[Settings]:
    """Embedded Postgres and Redis for those URLs that are not set; the settings with both URLs, migrated."""
    with ExitStack() as stop:
        if not settings.database_url:
            postgres = EmbeddedPostgres(settings.data_path / "postgres")
            settings = replace(settings, database_url=postgres.start())
            stop.callback(postgres.stop)
        if not settings.redis_url:
            redis = EmbeddedRedis(settings.data_path / "redis")
            settings = replace(settings, redis_url=redis.start())
            stop.callback(redis.stop)
        migrate(
            settings.database_url,
            model=settings.model,
            chunk_chars=settings.chunk_chars,
            overlap_chars=settings.overlap_chars,
        )
        yield settings


@contextmanager
def run_stack(
    settings: Settings, *, workers: int = 1, console: bool = True, log_file: IO[bytes] | None = None
) -> Iterator[Stack]:
    """Start everything, wait until it is ready, and stop it all at the end, in reverse order.

    A child that ends is started again, after a pause that doubles. `log_file` takes the children's logs
    (default: our stderr). Raises PermanentError with the child's name when one ends before it is ready.
    """
    with servers(settings) as running:
        commands = [
            ["serve", "ingest"],
            ["serve", "retrieval"],
            *[["worker"] for _ in range(workers)],
            ["sweeper"],
        ]
        ports = {"ingest": running.ingest_port, "retrieval": running.retrieval_port}
        if console:
            commands.append(["console"])
            ports["console"] = running.console_port
        if running.gateway_upstream_url:
            commands.append(["gateway"])
            ports["gateway"] = running.gateway_port
        for name, port in ports.items():
            refuse_taken(running.host, port, instead=f"set {variable(f'{name}_port')} to a free port")
        # One port for all of them would stop the second.
        children = _Children(commands, environment(replace(running, metrics_port=0)), log_file)
        try:
            children.launch()
            urls = {name: running.url(port) for name, port in ports.items()}
            for url in urls.values():
                children.wait_until_ready(url)
            children.watch()
            yield Stack(
                settings=running,
                ingest_url=urls["ingest"],
                retrieval_url=urls["retrieval"],
                console_url=urls.get("console"),
                gateway_url=urls.get("gateway"),
            )
        finally:
            children.stop()


class _Children:
    def __init__(self, commands: Sequence[Sequence[str]], env: dict[str, str], log_file: IO[bytes] | None) -> None:
        self._commands = commands
        self._env = env
        self._log_file = log_file
        self._processes: list[subprocess.Popen[bytes]] = []
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    def launch(self) -> None:
        for command in self._commands:
            self._processes.append(self._launch(command))

    def watch(self) -> None:
        """From now on a child that ends is started again."""
        self._watcher.start()

    def _launch(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "calmem_services.cli.main", *command],
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=self._log_file,
            stderr=self._log_file,
            start_new_session=True,  # the terminal's Ctrl-C is ours to pass on
            preexec_fn=die_with_parent,
        )

    def wait_until_ready(self, url: str) -> None:
        until = time.monotonic() + READY_SECONDS
        while time.monotonic() < until:
            try:
                # A proxy in the environment is for the world outside.
                if httpx.get(f"{url}/readyz", timeout=10, trust_env=False).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            for command, process in zip(self._commands, self._processes, strict=True):
                if process.poll() is not None:
                    name = " ".join(command)
                    raise PermanentError(f"calmem {name} ended with code {process.returncode}; its log says why")
            time.sleep(0.1)
        raise TransientError(f"{url} was not ready after {READY_SECONDS:.0f} s; its log says why")

    def _watch(self) -> None:
        pauses = [_FIRST_PAUSE] * len(self._commands)
        while not self._stopping.wait(0.3):
            for place, process in enumerate(self._processes):
                if process.poll() is None:
                    continue
                log.warning("process_ended", command=self._commands[place], code=process.returncode)
                if self._stopping.wait(pauses[place]):
                    return
                pauses[place] = min(2 * pauses[place], _LONGEST_PAUSE)
                self._processes[place] = self._launch(self._commands[place])

    def stop(self) -> None:
        self._stopping.set()
        if self._watcher.is_alive():
            self._watcher.join()
        for process in reversed(self._processes):
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(timeout=_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
