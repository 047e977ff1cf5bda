"""pgbouncer in transaction mode before the tests' Postgres."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import conninfo

from calmem_services.local.children import die_with_parent
from calmem_services.local.ports import free_ports
from tests.support.processes import eventually

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def pooler(database_url: str, directory: Path, *, connections: int) -> Iterator[str]:
    """URL of the database behind a pgbouncer that shares `connections` among all clients, by transactions.

    Its settings are those of docs/several-boxes.md: nothing is ignored for calmem's sake.
    """
    assert PGBOUNCER is not None
    given = conninfo.conninfo_to_dict(database_url)
    (port,) = free_ports(1)
    config = directory / "pgbouncer.ini"
    config.write_text(
        f"""
[databases]
* = host={given["host"]} user={given["user"]}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {connections}
"""
    )
    # It refuses to run as root.
    owner = Path(str(given["host"])).owner()
    log = directory / "pgbouncer.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [PGBOUNCER, *(["-u", owner] if os.geteuid() == 0 else []), str(config)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            preexec_fn=die_with_parent,
        )
    url = f"postgresql://calmem@127.0.0.1:{port}/{given['dbname']}"
    try:
        eventually(lambda: process.poll() is not None or _answers(url), "pgbouncer answers", seconds=20)
        assert process.poll() is None, log.read_text("utf-8")
        yield url
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True
