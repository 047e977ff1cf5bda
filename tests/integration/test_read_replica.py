"""Retrieval on a hot standby: all that reads works there, and what was deleted leaves it too (docs/growing.md)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import psycopg
import pytest

from calmem import Memory
from calmem.errors import TransientError
from calmem.keys import Keys
from calmem.model import KeyScope
from calmem.settings import Settings
from calmem.storage.migrate import migrate
from calmem.storage.pool import Database
from calmem_services.local.postgres import EmbeddedPostgres
from calmem_services.retrieval.app import create_app
from calmem_workers.main import run_worker
from tests.support.http import assert_problem, client, until_ready
from tests.support.keys import bearer, make
from tests.support.postgres import program
from tests.support.processes import eventually

SAID = "We decided on SQLite for the stock."
QUERY = "Which database did we choose?"


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Settings of the two servers."""

    primary: Settings
    standby: Settings


@pytest.fixture
def pair(settings: Settings, tmp_path: Path) -> Iterator[Pair]:
    """A server that knows what mei said, and a standby made from it, which follows it."""
    first = EmbeddedPostgres(tmp_path / "primary")
    second = EmbeddedPostgres(tmp_path / "standby")
    first.start()
    try:
        with psycopg.connect(first.url("postgres"), autocommit=True) as conn:
            conn.execute("CREATE DATABASE calmem")
        primary = replace(settings, database_url=first.url("calmem"))
        migrate(primary.database_url)
        with Memory(settings=primary) as memory:
            memory.record(user_id="mei", session_id="s1", role="user", content=SAID, message_id="m1")
            memory.remember_fact(user_id="mei", session_id="s1", key="diet", value="no walnuts")
        run_worker(primary, burst=True)
        copied = (f"--dbname={first.url('postgres')}", f"--pgdata={tmp_path / 'standby'}", "--checkpoint=fast")
        subprocess.run([program("pg_basebackup"), *copied, "--write-recovery-conf"], check=True)
        (tmp_path / "standby" / ".s.PGSQL.5432.lock").unlink(missing_ok=True)  # the sockets are in the data directories
        # As root the servers run as a user of their own.
        owner = (tmp_path / "primary").stat()
        subprocess.run(["chown", "--recursive", f"{owner.st_uid}:{owner.st_gid}", tmp_path / "standby"], check=True)
        second.start()
        yield Pair(primary=primary, standby=replace(settings, database_url=second.url("calmem")))
    finally:
        second.stop()
        first.stop()


def recall(opened: httpx.Client, **fields: object) -> httpx.Response:
    request = {"user_id": "mei", "session_id": "s1", "query": QUERY, "current_tokens": 0, **fields}
    return opened.post("/v1/recall", json={**request, "context_window_capacity": 8_000})


def test_a_standby_answers_like_its_primary_and_takes_no_writes(pair: Pair) -> None:
    with Database(pair.primary) as database:
        key = make(Keys(database), KeyScope.RECALL, KeyScope.FACTS)
    with client(create_app(pair.primary)) as primary, client(create_app(pair.standby)) as standby:
        until_ready(primary, standby)
        for opened in (primary, standby):
            opened.headers.update(bearer(key))
        eventually(lambda: recall(standby).status_code == 200, "the key has come to the standby")
        here, there = recall(primary).json(), recall(standby).json()
        assert SAID in there["block"]
        assert "no walnuts" in there["block"]
        assert there["degraded"] is None
        assert (there["block"], there["items"]) == (here["block"], here["items"])
        for path in ("/v1/facts", "/v1/sessions", "/v1/sessions/s1/messages"):
            assert (
                standby.get(path, params={"user_id": "mei"}).json()
                == primary.get(path, params={"user_id": "mei"}).json()
            )

        fact = {"user_id": "mei", "value": "no nuts at all"}
        refused = assert_problem(standby.put("/v1/sessions/s1/facts/diet", json=fact), 503)
        assert "standby" in refused["detail"]
        assert primary.put("/v1/sessions/s1/facts/diet", json=fact).status_code == 200
        eventually(lambda: "no nuts at all" in recall(standby).json()["block"], "the fact has come to the standby")


def test_what_is_recorded_and_deleted_on_the_primary_comes_to_the_standby(pair: Pair) -> None:
    with (
        Memory(settings=pair.primary) as memory,
        Memory(settings=replace(pair.standby, cache_megabytes=16)) as reader,
    ):

        def block() -> str:
            found = reader.recall(
                user_id="mei", session_id="s2", query=QUERY, current_tokens=0, context_window_capacity=8_000
            )
            return found.block

        eventually(lambda: SAID in block(), "the model is loaded")
        with pytest.raises(TransientError, match="standby"):
            reader.record(user_id="mei", session_id="s2", role="user", content="Is anybody there?")
        later = "The stock's database moves to Postgres next year."
        memory.record(user_id="mei", session_id="s2", role="user", content=later, message_id="m2")
        run_worker(pair.primary, burst=True)
        eventually(lambda: later in block(), "the new message has come to the standby")
        memory.delete_message("mei", "m1")
        eventually(lambda: SAID not in block(), "the deletion has come to the standby")
        assert later in block()
