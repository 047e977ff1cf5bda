"""`calmem doctor`: each thing that can be wrong is made wrong on real servers, and named with its cure."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import psycopg
import pytest

from calmem.doctor import Finding, State, examine
from calmem.memory import Memory
from calmem.settings import Settings
from calmem.storage.pool import Database
from calmem_services.local.redis import EmbeddedRedis
from calmem_services.local.stack import environment
from tests.support.processes import eventually, running
from tests.support.vectors import Told, units


def by_check(findings: Iterator[Finding]) -> dict[str, Finding]:
    found = {finding.check: finding for finding in findings}
    assert all((finding.mend is None) == (finding.state is State.OK) for finding in found.values())
    return found


def doctor(settings: Settings, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "calmem_services.cli.main", "doctor", *arguments],
        env=environment(settings) | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def run(settings: Settings, *statements: str) -> None:
    with psycopg.connect(settings.database_url, autocommit=True) as conn:
        for statement in statements:
            conn.execute(statement.encode())


def test_a_healthy_deployment(settings: Settings, tmp_path: Path) -> None:
    run(settings, "VACUUM vectors")
    with running(["worker"], settings, tmp_path / "worker.log", ready="worker_ready"):
        eventually(lambda: by_check(examine(settings))["workers"].state is State.OK, "the worker is registered")
        findings = list(examine(settings))
        told = doctor(settings)
    assert [finding.check for finding in findings] == [
        *("connection", "extension", "clock", "migrations", "model", "queue", "workers", "pending", "failed", "vacuum")
    ]
    assert {finding.state for finding in findings} == {State.OK}
    assert told.returncode == 0, told.stdout
    assert told.stdout.count("OK ") == 10
    assert "->" not in told.stdout


def test_a_misspelt_setting_is_named_with_the_one_that_was_meant(settings: Settings) -> None:
    odd = {"CALMEM_LOG_LEVL": "debug", "CALMEM_FLAVOUR": "mild", "CALMEM_LOG_LEVEL": "info", "HOME": "/"}
    found = [one for one in examine(settings, environ=odd) if one.check == "settings"]
    assert [(one.state, one.found, one.mend) for one in found] == [
        (
            State.WARNING,
            "CALMEM_FLAVOUR is set and is no setting of calmem",
            "see `calmem settings` for those there are, or unset it",
        ),
        (State.WARNING, "CALMEM_LOG_LEVL is set and is no setting of calmem", "CALMEM_LOG_LEVEL was meant?"),
    ]
    told = doctor(settings, CALMEM_DATABSE_URL="x")
    assert "CALMEM_DATABSE_URL is set and is no setting" in told.stdout
    assert "CALMEM_DATABASE_URL was meant?" in told.stdout


def test_without_a_worker_the_command_fails_and_says_what_to_start(settings: Settings) -> None:
    told = doctor(settings, "--json")
    assert told.returncode == 1
    wrong = [one for one in json.loads(told.stdout) if one["state"] != "ok"]
    assert wrong == [
        {"check": "workers", "state": "failure", "found": "none is registered", "mend": "start `calmem worker`"}
    ]
    assert "-> start `calmem worker`" in doctor(settings).stdout


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "CALMEM_DATABASE_URL is not set"),
        ("nonsense", "CALMEM_DATABASE_URL: must be an address"),
        ("postgresql://postgres@127.0.0.1:1/x", "onnection refused"),
    ],
)
def test_no_database(settings: Settings, url: str, says: str) -> None:
    found = by_check(examine(replace(settings, database_url=url)))
    assert set(found) == {"connection", "queue", "workers"}  # what rests on the database is left out
    assert found["connection"].state is State.FAILURE
    assert says in found["connection"].found


def test_a_database_that_is_not_there(settings: Settings) -> None:
    url = psycopg.conninfo.make_conninfo(settings.database_url, dbname="elsewhere", password="hunter2")
    finding = by_check(examine(replace(settings, database_url=url)))["connection"]
    assert finding.state is State.FAILURE
    assert 'database "elsewhere" does not exist' in finding.found
    assert "hunter2" not in finding.found


def test_a_database_that_nobody_migrated(settings: Settings, empty_database_url: str) -> None:
    found = by_check(examine(replace(settings, database_url=empty_database_url)))
    assert found["extension"] == Finding(
        check="extension",
        state=State.FAILURE,
        found="pgvector is installed but not in this database",
        mend="run `calmem db migrate`",
    )
    assert found["migrations"].state is State.FAILURE
    assert found["migrations"].found.startswith("not applied: 0001_base")
    assert "model" not in found


def test_migrations_missing_and_unknown(settings: Settings) -> None:
    run(settings, "INSERT INTO schema_migrations (name) VALUES ('9999_of_tomorrow')")
    finding = by_check(examine(settings))["migrations"]
    assert (finding.state, "9999_of_tomorrow" in finding.found) == (State.WARNING, True)
    run(settings, "DELETE FROM schema_migrations WHERE name = '0012_index_sizes'")
    finding = by_check(examine(settings))["migrations"]
    assert (finding.state, finding.found) == (State.FAILURE, "not applied: 0012_index_sizes")


def test_a_wrong_clock(settings: Settings) -> None:
    for hours, says in ((1, "3600.0 s ahead of"), (-1, "3600.0 s behind")):
        now = lambda hours=hours: datetime.now(UTC) + timedelta(hours=hours)  # noqa: E731
        finding = by_check(examine(settings, now=now))["clock"]
        assert finding.state is State.WARNING
        assert says.split(".")[0] in finding.found
        assert says.split()[2] in finding.found


def test_the_model(settings: Settings, tmp_path: Path) -> None:
    finding = by_check(examine(replace(settings, model_path=str(tmp_path / "nothing"))))["model"]
    assert finding.state is State.FAILURE
    assert str(tmp_path / "nothing") in finding.found
    finding = by_check(examine(replace(settings, model="another/one")))["model"]
    assert finding.state is State.WARNING
    assert "CALMEM_MODEL is another/one" in finding.found


def test_no_transaction_is_open_while_the_model_is_loaded(settings: Settings) -> None:
    """It may be downloaded for minutes, and many a server ends a transaction that is idle for so long."""
    open_ones = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state ~ '^idle in trans'"
    with psycopg.connect(settings.database_url, autocommit=True) as conn:
        for finding in examine(settings):
            if finding.check == "model":
                assert conn.execute(open_ones).fetchone() == (0,)
                break
        else:
            pytest.fail("the model was not examined")


def test_redis(settings: Settings, redis_server: EmbeddedRedis) -> None:
    finding = by_check(examine(replace(settings, redis_url="")))["queue"]
    assert (finding.state, "not set" in finding.found) == (State.WARNING, True)
    finding = by_check(examine(replace(settings, redis_url="http://x")))["queue"]
    assert (finding.state, "CALMEM_REDIS_URL" in finding.found) == (State.FAILURE, True)

    from calmem.queueing import connect

    connect(settings.redis_url).config_set("maxmemory-policy", "allkeys-lru")
    finding = by_check(examine(settings))["queue"]
    assert (finding.state, "allkeys-lru" in finding.found) == (State.WARNING, True)

    redis_server.stop()
    found = by_check(examine(settings))
    assert (found["queue"].state, "cannot be reached" in found["queue"].found) == (State.FAILURE, True)
    assert "workers" not in found


def test_messages_that_wait_and_that_were_set_aside(settings: Settings, memory: Memory) -> None:
    for number in range(2):
        memory.record(user_id="ada", session_id="s", role="user", content=f"Message {number}.")
    run(
        settings,
        "UPDATE index_tasks SET created_at = now() - interval '1 day'",
        "UPDATE index_tasks SET failed_at = now(), error = 'broken' WHERE message_no = (SELECT min(message_no) FROM messages)",
    )
    found = by_check(examine(settings))
    assert found["pending"].state is State.WARNING
    assert found["pending"].found.startswith("1 messages, the oldest for 864")
    assert (found["failed"].state, found["failed"].found) == (State.WARNING, "1 messages set aside")


def test_a_few_vectors_that_no_vacuum_has_seen_are_no_finding(settings: Settings) -> None:
    with Database(settings) as database:
        Told(database).add(units(np.random.default_rng(1), 6, 384))
    run(settings, "UPDATE search_indexes SET dimension = 384, probe = (SELECT embedding FROM vectors LIMIT 1)")
    finding = by_check(examine(settings))["vacuum"]
    assert (finding.state, "6 vectors were read" in finding.found) == (State.OK, True)


def test_a_scan_that_is_not_really_index_only(settings: Settings) -> None:
    with Database(settings) as database:
        Told(database).add(units(np.random.default_rng(1), 300, 384))
    run(settings, "UPDATE search_indexes SET dimension = 384, probe = (SELECT embedding FROM vectors LIMIT 1)")
    finding = by_check(examine(settings))["vacuum"]
    assert finding.state is State.WARNING
    assert "300 vectors were read with 300 heap fetches" in finding.found
    assert finding.mend is not None
    run(settings, "VACUUM vectors")
    finding = by_check(examine(settings))["vacuum"]
    assert (finding.state, finding.found) == (
        State.OK,
        "the largest user's 300 vectors were read with 0 heap fetches, index-only",
    )
