"""A role or database whose settings write times, bytes, numbers and text in another way: recall says the same."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from calmem.memory import Memory
from calmem.model import Recall
from calmem.models import Models
from calmem.queueing import WakeUps
from calmem.settings import Settings
from calmem.storage.pool import Database
from calmem_workers.index import Drainer
from tests.support.pooler import PGBOUNCER, pooler
from tests.support.postgres import alter_database

NOW = datetime(2025, 6, 10, 12, tzinfo=UTC)
ODD = "O'Brien \\' \" %s %(user_id)s {a,b} ; -- \u00e9\u5468\U0001f33f $$ E'\\x27"


def told(memory: Memory) -> None:
    memory.record_many(
        [
            {
                "user_id": ODD,
                "session_id": f"{ODD} old",
                "message_id": f"{ODD} {number}",
                "role": "user",
                "name": f"Zo\u00eb {ODD}",
                "content": content,
                "created_at": datetime(2024, 12, 3 + number, 23, 45, 6, 789, tzinfo=UTC),
            }
            for number, content in enumerate(
                [
                    f"The roses of {ODD} flower by the gate.",
                    "The r\u00f4ses \u5468\u672b bloom.",
                    "Slugs ate the roses and lettuce.",
                ]
            )
        ]
    )
    memory.remember_fact(user_id=ODD, session_id=f"{ODD} now", key=ODD, value=ODD)


def asked(settings: Settings) -> tuple[Recall, Recall]:
    request: dict[str, Any] = {
        "user_id": ODD,
        "session_id": f"{ODD} now",
        "query": f"roses in December 2024 {ODD}",
        "current_tokens": 0,
        "context_window_capacity": 8_000,
        "now": NOW,
    }
    with Memory(settings=settings) as memory:
        first = memory.recall(**request)
        hidden = memory.recall(**request, active_message_ids=[f"{ODD} 0"], since="2024-12-03T12:00:00Z", k=2)
    return replace(first, timings_ms={}), replace(hidden, timings_ms={})


def indexed(settings: Settings) -> tuple[Recall, Recall]:
    """What is recalled with the server's own settings."""
    with Memory(settings=settings) as memory:
        told(memory)
    with Database(settings) as database:
        assert Drainer(database, settings, Models(settings), WakeUps(settings.redis_url)).drain() == 3
    usual = asked(settings)
    assert usual[0].items
    assert usual[0].facts
    assert not usual[0].degraded
    assert usual[0].items[0].created_at == datetime(2024, 12, 3, 23, 45, 6, 789, tzinfo=UTC)
    return usual


@pytest.mark.parametrize(
    "sets",
    [
        ("datestyle = 'SQL, DMY'",),
        ("timezone = 'Asia/Kolkata'", "intervalstyle = 'sql_standard'", "extra_float_digits = 0"),
        ("client_encoding = 'LATIN1'",),
        ("bytea_output = 'escape'", "standard_conforming_strings = off", "backslash_quote = off"),
    ],
    ids=lambda sets: sets[0].split()[0],
)
def test_recall_says_the_same(settings: Settings, sets: tuple[str, ...]) -> None:
    usual = indexed(settings)
    alter_database(settings.database_url, *sets)
    assert asked(settings) == usual


@pytest.mark.skipif(PGBOUNCER is None, reason="there is no pgbouncer here")
def test_recall_says_the_same_beside_another_client_of_a_pooler(settings: Settings, tmp_path: Path) -> None:
    usual = indexed(settings)
    alter_database(settings.database_url, "datestyle = 'SQL, DMY'", "client_encoding = 'LATIN1'")
    with pooler(settings.database_url, tmp_path, connections=1) as url, psycopg.connect(url, autocommit=True) as other:
        for _ in range(2):
            other.execute("SET datestyle = 'German'")
            other.execute("SET client_encoding = 'LATIN2'")
            assert asked(replace(settings, database_url=url)) == usual
