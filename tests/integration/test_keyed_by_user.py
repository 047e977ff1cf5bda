"""Every table of a user's can be distributed by user, but for three constraints (docs/growing.md)."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from calmem.storage.pool import Connection

# Few rows that belong to no user: every node of a cluster has all of them.
OF_NOBODY = {"api_keys", "console_logins", "import_checkpoints", "index_walks", "schema_migrations", "search_indexes"}
# What refuses an id that another user uses; and how an id is found.
ACROSS_USERS = {"users_user_id_key", "sessions_session_id_key", "messages_message_id_key"}

_TABLES = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')"
_UNIQUE = """
SELECT t.relname, i.relname, a.attname FROM pg_index x JOIN pg_class t ON t.oid = x.indrelid JOIN pg_class i ON i.oid = x.indexrelid
LEFT JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = x.indkey[0]
WHERE t.relnamespace = 'public'::regnamespace AND (x.indisunique OR x.indisexclusion)
"""
_FOREIGN = """
SELECT c.conrelid::regclass::text, c.conname, c.confrelid::regclass::text, a.attname, r.attname
FROM pg_constraint c JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = c.conkey[1]
JOIN pg_attribute r ON r.attrelid = c.confrelid AND r.attnum = c.confkey[1]
WHERE c.contype = 'f' AND c.connamespace = 'public'::regnamespace
"""


@pytest.fixture
def conn(database_url: str) -> Iterator[Connection]:
    with psycopg.connect(database_url) as opened:
        yield opened


def test_every_table_of_a_user_begins_its_keys_with_the_user(conn: Connection) -> None:
    tables = {name for (name,) in conn.execute(_TABLES)}
    assert tables > OF_NOBODY
    unique = [row for row in conn.execute(_UNIQUE) if row[0] not in OF_NOBODY]
    without = {index for _, index, first in unique if first != "user_no"}
    assert without == ACROSS_USERS
    assert {table for table, _, first in unique if first == "user_no"} == tables - OF_NOBODY


def test_every_reference_stays_with_the_user_or_leads_to_a_table_of_nobody(conn: Connection) -> None:
    for table, name, referenced, own, other in conn.execute(_FOREIGN).fetchall():
        if referenced in OF_NOBODY:
            continue
        assert table not in OF_NOBODY, f"{name}: every node has {table}, but not all of {referenced}"
        assert (own, other) == ("user_no", "user_no"), f"{name}: from {table} to {referenced}"


def test_a_user_never_changes(conn: Connection) -> None:
    """A row's node goes by its user, so no cascade may change it."""
    changing = conn.execute("SELECT conname FROM pg_constraint WHERE contype = 'f' AND confupdtype <> 'a'").fetchall()
    assert changing == []
