"""Postgres whose disk is full and Redis whose memory is full: clear errors, nothing lost, and all goes on afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
import redis

from calmem.settings import Settings
from calmem.storage.migrate import migrate
from calmem_services.local.postgres import EmbeddedPostgres
from tests.support.http import assert_problem
from tests.support.processes import eventually, running
from tests.support.rows import rows
from tests.support.serving import serving

DISK_BYTES = 160 * 2**20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 160 MB. It is the test's own, and mounting one is root's."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=755", "tmpfs", str(disk)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode != 0:
        pytest.skip(f"no small file system: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.fixture
def small_postgres(small_disk: Path, tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A Postgres on it. Its log is elsewhere: a server that cannot write its log stops, which is another outage."""
    server = EmbeddedPostgres(small_disk / "data")
    server.start()
    server.pause()
    elsewhere = tmp_path / "wal"
    shutil.move(small_disk / "data" / "pg_wal", elsewhere)
    (small_disk / "data" / "pg_wal").symlink_to(elsewhere)
    owner = (small_disk / "data").stat()
    for one in (elsewhere, *elsewhere.rglob("*")):
        os.chown(one, owner.st_uid, owner.st_gid)
    server.resume()
    yield server
    server.stop()


def fill(disk: Path) -> Path:
    """A file that takes all the space there is."""
    ballast = disk / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(65_536))
    with suppress(OSError), ballast.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(512))
    return ballast


def test_a_full_disk(small_postgres: EmbeddedPostgres, small_disk: Path, settings: Settings, tmp_path: Path) -> None:
    with psycopg.connect(small_postgres.url("postgres"), autocommit=True) as conn:
        conn.execute("CREATE DATABASE calmem")
    chosen = replace(settings, database_url=small_postgres.url("calmem"), max_attempts=2, lease_seconds=1.0)
    migrate(chosen.database_url)
    with serving(chosen, tmp_path) as calmem:
        for number in range(200):
            assert (
                calmem.record(f"Turn {number}: the boiler is a Vaillant.", session_id=f"s{number}").status_code == 201
            )

        ballast = fill(small_disk)
        recorded = 200
        # Pages that are there already still take something.
        for number in range(2_000):
            answer = calmem.record(f"Late turn {number}: " + os.urandom(4_000).hex(), message_id=f"late-{number}")
            if answer.status_code != 201:
                break
            recorded += 1
        assert "disk is full" in assert_problem(answer, 503)["detail"]
        assert "retry-after" in answer.headers
        found = rows(chosen)
        assert (found["messages"], found["index_tasks"]) == (recorded, recorded)
        assert calmem.recall("boiler").json()["items"]

        with (
            running(["worker"], chosen, tmp_path / "worker.log", ready="worker_ready") as worker,
            running(["sweeper"], chosen, tmp_path / "sweeper.log"),
        ):
            eventually(lambda: worker.text().count("disk is full") >= 3, "the worker finds the disk full, and again")
            assert calmem.recall("boiler").json()["items"]
            assert rows(chosen)["index_tasks"] > 0

            ballast.unlink()
            assert calmem.record("x", message_id=f"late-{number}").status_code in (201, 503)
            eventually(lambda: rows(chosen)["index_tasks"] == 0, "everything is indexed")
        assert "set_aside" not in worker.text(), "no message was blamed for it"
        assert rows(chosen)["vectors"] >= recorded


def test_redis_without_memory(settings: Settings, tmp_path: Path) -> None:
    server = redis.Redis.from_url(settings.redis_url)
    with serving(settings, tmp_path) as calmem:
        server.config_set("maxmemory-policy", "noeviction")
        server.config_set("maxmemory", "1")  # less than it has already
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            server.set("anything", 1)
        assert calmem.record("The boiler is a Vaillant.").status_code == 201
        assert "wakeup_lost" in calmem.logs()
        with running(["worker"], settings, tmp_path / "worker.log", ready="worker_ready"):
            eventually(lambda: rows(settings)["index_tasks"] == 0, "indexed without a wake-up")
