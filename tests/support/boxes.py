"""Boxes of their own: Linux network namespaces on one bridge, each of which can be cut off and joined again."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg

from calmem_services.local.children import die_with_parent
from calmem_services.local.postgres import EmbeddedPostgres
from calmem_services.local.redis import _binary as redis_binary
from tests.support.processes import eventually

_IP = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
_MADE_BY = re.compile(r"^(?:calmem-|cm)(\d+)\b")


class NotPermitted(Exception):
    """This machine or user makes no network namespaces; the text says why."""


def _ip(*arguments: str) -> str:
    assert _IP is not None
    done = subprocess.run([_IP, *arguments], capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise NotPermitted(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


class Box:
    """One namespace. What runs `within` it sees its own address and loopback, nothing else of this machine."""

    def __init__(self, network: Network, name: str, number: int) -> None:
        self.address = f"{network.prefix}.{number}"
        self.namespace = f"calmem-{os.getpid()}-{name}"
        self._bridge = network.bridge
        self._cable = f"cm{os.getpid()}-{number}"
        _ip("netns", "add", self.namespace)
        _ip("link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        for device in ("lo", "eth0"):
            _ip("-n", self.namespace, "link", "set", device, "up")
        _ip("-n", self.namespace, "addr", "add", f"{self.address}/24", "dev", "eth0")
        _ip("link", "set", self._cable, "up")
        self.join()

    @property
    def within(self) -> Sequence[str]:
        """The command before a command that is to run in this box."""
        assert _IP is not None
        return (_IP, "netns", "exec", self.namespace)

    def cut(self) -> None:
        """From now on nothing comes or goes, and nobody is told: as if a switch on the way had lost its power."""
        _ip("link", "set", self._cable, "nomaster")

    def join(self) -> None:
        _ip("link", "set", self._cable, "master", self._bridge)


class Network:
    """A bridge that this process has an address on, too."""

    def __init__(self) -> None:
        self.bridge = f"cm{os.getpid()}"
        taken = _ip("-4", "route")
        free = (f"10.{231 + n // 250 % 20}.{n % 250}" for n in range(os.getpid(), os.getpid() + 500))
        self.prefix = next(prefix for prefix in free if f"{prefix}." not in taken)
        self._numbers = iter(range(2, 250))
        _ip("link", "add", self.bridge, "type", "bridge", "forward_delay", "0")
        _ip("addr", "add", f"{self.prefix}.1/24", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")

    def box(self, name: str) -> Box:
        return Box(self, name, next(self._numbers))


@contextmanager
def network() -> Iterator[Network]:
    """A network for the time of the block; its leftovers, and those of runs that crashed, are removed.

    Raises NotPermitted saying why there can be none.
    """
    if _IP is None:
        raise NotPermitted("the command `ip` is not installed (Debian's package iproute2)")
    if os.geteuid() != 0:
        raise NotPermitted("network namespaces are made by root only")
    _remove_leftovers()
    try:
        yield Network()
    finally:
        _remove(os.getpid())


def _names() -> list[str]:
    links = re.findall(r"^\d+: ([^:@]+)", _ip("-o", "link"), re.MULTILINE)
    return [*(line.split()[0] for line in _ip("netns", "list").splitlines() if line.strip()), *links]


def _remove_leftovers() -> None:
    makers = {int(found[1]) for name in _names() if (found := _MADE_BY.match(name))}
    for pid in makers:
        if not Path(f"/proc/{pid}").exists():
            _remove(pid)


def _remove(pid: int) -> None:
    for name in _names():
        found = _MADE_BY.match(name)
        if not found or int(found[1]) != pid:
            continue
        if name.startswith("calmem-"):
            # Whatever a crashed run left running there would keep the namespace alive.
            for child in _ip("netns", "pids", name).split():
                os.kill(int(child), signal.SIGKILL)
            _ip("netns", "delete", name)
        elif name == f"cm{pid}":
            _ip("link", "delete", name)


@contextmanager
def _server(box: Box, command: Sequence[str], directory: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as file:
        process = subprocess.Popen(
            [*box.within, *command],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            preexec_fn=die_with_parent,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def postgres(box: Box, directory: Path) -> Iterator[str]:
    """URL of the database `calmem`, not migrated, of a Postgres that listens on the box's address."""
    embedded = EmbeddedPostgres(directory)
    with ExitStack() as stop:
        with psycopg.connect(embedded.start(), autocommit=True) as conn:
            stop.callback(embedded.stop)
            conn.execute("CREATE DATABASE calmem")
        pid = (directory / "postmaster.pid").read_text("utf-8").split()[0]
        binary = os.readlink(f"/proc/{pid}/exe")
    with (directory / "pg_hba.conf").open("a", encoding="utf-8") as file:
        file.write(f"host all all {box.address}/24 trust\n")
    owner = directory.stat()
    identity = ["setpriv", f"--reuid={owner.st_uid}", f"--regid={owner.st_gid}", "--clear-groups"]
    command = [*identity, binary, "-D", str(directory), "-h", box.address, "-k", ""]
    url = f"postgresql://postgres@{box.address}/calmem"
    with _server(box, command, directory, directory.with_suffix(".log")) as process:

        def answers() -> bool:
            try:
                psycopg.connect(url, connect_timeout=2).close()
            except psycopg.OperationalError:
                return process.poll() is not None
            return True

        eventually(answers, "Postgres answers in its box")
        assert process.poll() is None, directory.with_suffix(".log").read_text("utf-8")
        yield url


@contextmanager
def redis(box: Box, directory: Path) -> Iterator[str]:
    """URL of a Redis that listens on the box's address."""
    directory.mkdir()
    command = [redis_binary(), "--bind", box.address, "--port", "6379", "--protected-mode", "no", "--save", ""]
    log = directory / "log"
    with _server(box, command, directory, log) as process:
        eventually(lambda: process.poll() is not None or "eady to accept" in log.read_text("utf-8"), "Redis answers")
        assert process.poll() is None, log.read_text("utf-8")
        yield f"redis://{box.address}:6379/0"
