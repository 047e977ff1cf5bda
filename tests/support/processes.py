"""Real calmem processes for acceptance tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from calmem.settings import Settings
from calmem_services.local.stack import environment

WAIT_SECONDS = 90.0


def eventually(condition: Callable[[], bool], what: str, *, seconds: float = WAIT_SECONDS) -> None:
    """Wait until the condition holds; fail saying what did not come about."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


class Process:
    """One running `calmem …`, with its log in a file; `within`: a command that runs it elsewhere."""

    def __init__(self, arguments: Sequence[str], settings: Settings, log: Path, *, within: Sequence[str] = ()) -> None:
        self.log = log
        self._file = log.open("ab")
        self._process = subprocess.Popen(
            [*within, sys.executable, *arguments],
            env=environment(settings),
            stdin=subprocess.DEVNULL,
            stdout=self._file,
            stderr=self._file,
        )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """kill -9, in the middle of whatever it does."""
        if self.running:
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._file.close()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        if self.running:
            self._process.terminate()
        return self.wait()

    def wait(self) -> int:
        """The exit code, when it ends by itself."""
        try:
            return self._process.wait(timeout=WAIT_SECONDS)
        finally:
            self._file.close()

    def text(self) -> str:
        return self.log.read_text("utf-8", "replace")


@contextmanager
def running(
    command: Sequence[str], settings: Settings, log: Path, *, ready: str | None = None, within: Sequence[str] = ()
) -> Iterator[Process]:
    """`calmem <command>` for the time of the block; waits for `ready` in its log first."""
    process = Process(["-m", "calmem_services.cli.main", *command], settings, log, within=within)
    try:
        if ready is not None:
            eventually(lambda: ready in process.text() or not process.running, f"{ready!r} in {log}")
            assert process.running, process.text()
        yield process
    finally:
        if process.running:
            process.kill()
