"""What waits, as readiness asks for it: the truth about little, bounded work about much."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calmem.memory import Memory
from calmem.model import Lane
from calmem.settings import Settings
from calmem.storage import backlog
from calmem.storage.inspection import scans
from calmem.storage.pool import Database
from tests.support.tasks import record

MANY = 3 * backlog.MOST_COUNTED


def read(settings: Settings) -> tuple[Any, Any]:
    with Database(settings) as database, database.connection() as conn:
        return backlog.read(conn), backlog.queue_state(conn)


def test_of_little_it_says_what_counting_says(settings: Settings, memory: Memory) -> None:
    assert read(settings)[0].age_by_lane == {Lane.LIVE: 0.0, Lane.BACKFILL: 0.0}
    record(memory, 3)
    record(memory, 2, lane=Lane.BACKFILL)
    with psycopg.connect(settings.database_url) as conn:
        conn.execute("UPDATE index_tasks SET created_at = created_at - interval '1 hour' WHERE lane = 'backfill'")
        conn.execute(
            "UPDATE index_tasks SET failed_at = now(), error = 'no', attempts = 5 WHERE message_no = (SELECT min(message_no) FROM index_tasks)"
        )
    short, whole = read(settings)
    assert (short.pending, short.failed) == (whole.pending, whole.failed) == (4, 1)
    assert short.age_by_lane == pytest.approx(whole.age_by_lane, abs=60)
    assert short.live_seconds < 60 < 3_600 <= short.oldest_seconds


def test_what_waits_for_another_index_is_not_recall_s_business(settings: Settings, memory: Memory) -> None:
    record(memory, 2)
    with psycopg.connect(settings.database_url) as conn:
        conn.execute("SET session_replication_role = replica")  # the other index is not there
        conn.execute("UPDATE index_tasks SET index_no = 2")
    short, whole = read(settings)
    assert short.pending == whole.pending == 0


def test_much_that_waits_is_not_read_for_it(settings: Settings) -> None:
    with psycopg.connect(settings.database_url, autocommit=True) as conn:
        conn.execute("SET session_replication_role = replica")  # tasks alone, without their messages
        conn.execute(
            "INSERT INTO index_tasks (user_no, message_no, index_no, lane)"
            f" SELECT n, n, 1, CASE WHEN n % 10 = 0 THEN 'live' ELSE 'backfill' END FROM generate_series(1, {MANY}) AS n"
        )
        conn.execute("VACUUM ANALYZE index_tasks")
    assert read(settings)[0].pending == backlog.MOST_COUNTED + MANY // 10
    with Database(settings) as database, database.connection() as conn:
        values = {"most": backlog.MOST_COUNTED, "lanes": [Lane.LIVE, Lane.BACKFILL]}
        ran = [node for node in scans(conn, backlog._BACKLOG, values) if node.get("Relation Name") == "index_tasks"]
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in ran) <= 2 * backlog.MOST_COUNTED + 10
    assert "index_tasks_oldest" in {node.get("Index Name") for node in ran}
