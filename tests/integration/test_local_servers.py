"""The embedded servers: their addresses, their data, and that nothing of them stays behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import psycopg
import pytest

from calmem.errors import PermanentError, TransientError
from calmem.settings import Settings
from calmem_services.local import stack
from calmem_services.local.ports import free_ports, refuse_taken
from calmem_services.local.postgres import EmbeddedPostgres
from calmem_services.local.redis import EmbeddedRedis
from tests.support.processes import eventually
from tests.support.serving import needs_ipv6


def _below(directory: Path) -> list[psutil.Process]:
    """Running servers of this directory: both work in their own."""
    found = []
    for process in psutil.process_iter(["name", "cwd"]):
        if process.info["name"] in ("postgres", "redis-server") and (process.info["cwd"] or "").startswith(
            str(directory)
        ):
            found.append(process)
    return found


def test_postgres_keeps_address_and_data_over_a_restart_and_a_second_start(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "data")
    url = server.start()
    try:
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("CREATE TABLE kept AS SELECT 7 AS n")
            conn.execute("CREATE EXTENSION vector")
        server.restart()
        assert server.url("postgres") == url
        guest = EmbeddedPostgres(tmp_path / "data")
        assert guest.start() == url, "one directory, one server"
        guest.stop()
        with psycopg.connect(url) as conn:
            assert conn.execute("SELECT n FROM kept").fetchone() == (7,)
        server.pause()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(url)
    finally:
        server.stop()
    again = EmbeddedPostgres(tmp_path / "data")
    with psycopg.connect(again.start()) as conn:
        assert conn.execute("SELECT n FROM kept").fetchone() == (7,)
    again.stop()
    assert _below(tmp_path) == []


def test_postgres_in_a_directory_too_deep_for_a_socket_and_with_odd_characters(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / ("deep % & 记忆 " + "x" * 100) / "data")
    try:
        with psycopg.connect(server.start()) as conn:
            assert conn.execute("SELECT 1").fetchone() == (1,)
    finally:
        server.stop()


def test_redis_keeps_its_address_and_two_do_not_collide(tmp_path: Path) -> None:
    one, two = EmbeddedRedis(tmp_path / "one"), EmbeddedRedis(tmp_path / "two")
    assert one.start() != two.start()
    url = one.url
    one.stop()
    assert one.start() == url
    one.stop()
    two.stop()
    assert _below(tmp_path) == []


def test_redis_does_not_take_another_server_for_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = EmbeddedRedis(tmp_path / "first")
    first.start()
    second = EmbeddedRedis(tmp_path / "second")
    monkeypatch.setattr(second, "_port", int(first.url.split(":")[2].split("/")[0]))
    try:
        with pytest.raises(TransientError, match="did not start"):
            second.start()
    finally:
        first.stop()


def test_servers_end_when_their_starter_is_killed(tmp_path: Path) -> None:
    """kill -9 gives no chance to clean up; the kernel does."""
    code = (
        "import sys, time; from pathlib import Path\n"
        "from calmem_services.local.postgres import EmbeddedPostgres\n"
        "from calmem_services.local.redis import EmbeddedRedis\n"
        "there = Path(sys.argv[1])\n"
        "EmbeddedPostgres(there / 'pg').start(); EmbeddedRedis(there / 'redis').start()\n"
        "(there / 'ready').touch(); time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) as starter:
        try:
            eventually(lambda: (tmp_path / "ready").exists() or starter.poll() is not None, "servers started")
            children = psutil.Process(starter.pid).children(recursive=True)
            assert {"postgres", "redis-server"} <= {child.name() for child in children}
        finally:
            os.kill(starter.pid, signal.SIGKILL)
    eventually(lambda: not any(child.is_running() for child in children), "no server is left", seconds=30)


def test_a_child_gets_exactly_these_settings(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALMEM_MODEL", "somebody/elses")
    wanted = replace(settings, allow_open=True, embed_threads=3)
    assert Settings.from_env(stack.environment(wanted)) == wanted


@pytest.mark.parametrize(
    ("host", "family"),
    [("127.0.0.1", socket.AF_INET), pytest.param("::1", socket.AF_INET6, marks=needs_ipv6)],
)
def test_a_taken_port_is_named_with_its_setting(settings: Settings, host: str, family: socket.AddressFamily) -> None:
    (ingest, retrieval) = free_ports(2)
    with socket.create_server((host, retrieval), family=family):
        taken = replace(settings, host=host, ingest_port=ingest, retrieval_port=retrieval)
        with pytest.raises(PermanentError, match="CALMEM_RETRIEVAL_PORT"), stack.run_stack(taken):
            pass


def test_only_a_port_that_somebody_listens_on_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        with pytest.raises(PermanentError, match=f"^localhost:{port} is in use; leave$"):
            refuse_taken("localhost", port, instead="leave")
    refuse_taken("localhost", port, instead="leave")
    # An address that no machine has (RFC 5737), and a name (RFC 6761): who tries to listen there says what is wrong.
    refuse_taken("192.0.2.1", port, instead="leave")
    refuse_taken("nowhere.invalid", port, instead="leave")


def test_a_process_that_cannot_start_is_named(settings: Settings, tmp_path: Path) -> None:
    ingest, retrieval, console = free_ports(3)
    ports = {"ingest_port": ingest, "retrieval_port": retrieval, "console_port": console}
    broken = replace(settings, **ports, host="127.0.0.1", log_level="nonsense")  # type: ignore[arg-type]  # of a mapping
    with (
        (tmp_path / "log").open("ab") as log,
        pytest.raises(PermanentError, match="ended with code"),
        stack.run_stack(broken, log_file=log),
    ):
        pass
