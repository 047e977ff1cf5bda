"""docs/backup.md, tried: a dump restored into a new server, with a new Redis, remembers the same."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from rq import Queue

from calmem import Memory, queueing
from calmem.keys import Keyring, Keys
from calmem.model import KeyScope, Lane
from calmem.queueing import WakeUps
from calmem.settings import Settings
from calmem.storage.migrate import migrate
from calmem.storage.pool import Database
from calmem_services.local.postgres import EmbeddedPostgres
from calmem_services.local.redis import EmbeddedRedis
from calmem_workers.main import run_worker
from calmem_workers.sweep import sweep
from tests.support.keys import make
from tests.support.postgres import program
from tests.support.rows import rows

SAID = (
    ("s1", "user", "We decided on SQLite for the stock."),
    ("s1", "assistant", "Good: one file, no server, and the nightly copy is simple."),
    ("s2", "user", "我们的仓库在三号楼。"),
    ("s2", "user", "My sister Ines moved to Porto in March."),
)
QUERIES = ("Which database did we choose?", "Where does Ines live?", "仓库在哪里?")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A server that nothing was ever stored in."""
    server = EmbeddedPostgres(tmp_path / "postgres")
    server.start()
    yield server
    server.stop()


def blocks(settings: Settings) -> list[str]:
    with Memory(settings=settings) as memory:
        found = [
            memory.recall(user_id="mei", session_id="s9", query=query, current_tokens=0, context_window_capacity=8_000)
            for query in QUERIES
        ]
    assert [one.degraded for one in found] == [None] * len(QUERIES)
    return [one.block for one in found]


def test_a_restored_dump_remembers_the_same(
    settings: Settings, memory: Memory, elsewhere: EmbeddedPostgres, tmp_path: Path
) -> None:
    for n, (session, role, content) in enumerate(SAID):
        memory.record(user_id="mei", session_id=session, role=role, content=content, message_id=f"m{n}")
    memory.remember_fact(user_id="mei", session_id="s1", key="diet", value="no walnuts")
    run_worker(settings, burst=True)
    with Database(settings) as database:
        made = make(Keys(database), KeyScope.RECALL)
    # Recorded, and not yet indexed when the dump is taken.
    memory.record(user_id="mei", session_id="s3", role="user", content="The new boiler is a Vaillant.", message_id="m9")
    before, counted = blocks(settings), rows(settings)
    assert "SQLite" in before[0]

    dump = tmp_path / "calmem.dump"
    subprocess.run([program("pg_dump"), "--format=custom", f"--file={dump}", settings.database_url], check=True)
    with psycopg.connect(elsewhere.url("postgres"), autocommit=True) as conn:
        conn.execute("CREATE ROLE owner LOGIN")
        conn.execute("CREATE DATABASE calmem OWNER owner")
    with psycopg.connect(elsewhere.url("calmem"), autocommit=True) as conn:
        conn.execute("CREATE EXTENSION vector")
    url = elsewhere.url("calmem").replace("postgres@", "owner@")
    options = ("--exit-on-error", "--no-owner", "--no-comments")
    subprocess.run([program("pg_restore"), *options, f"--dbname={url}", dump], check=True)
    redis = EmbeddedRedis(tmp_path / "new_redis")
    restored = replace(settings, database_url=url, redis_url=redis.start())
    try:
        assert migrate(url) == []
        assert rows(restored) == counted
        assert blocks(restored) == before
        with Database(restored) as database:
            key = Keyring(database).recognise(made.secret)
            state = sweep(database, WakeUps(restored.redis_url), restored)
        assert key is not None
        assert state.pending == 1
        with queueing.connect(restored.redis_url) as connection:
            assert Queue(queueing.queue_name(Lane.LIVE), connection=connection).count == 1
        assert run_worker(restored, burst=True) == 1
        with Memory(settings=restored) as again:
            again.record(
                user_id="mei", session_id="s3", role="user", content="It hangs in the attic.", message_id="m10"
            )
            assert [one.seq for one in again.messages("mei", "s3")[0]] == [1, 2]
    finally:
        redis.stop()
