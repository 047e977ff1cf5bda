"""What `calmem doctor` reads of the server and of calmem's schema. Reads only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import psycopg

from calmem.model import SearchIndex
from calmem.storage import search
from calmem.storage.indexes import vector_literal
from calmem.storage.pool import Connection, check_url, network


@dataclass(frozen=True, kw_only=True)
class Server:
    """The Postgres behind the address. `vector`: pgvector's version, None where the database has none."""

    version: str
    standby: bool
    vector: tuple[int, ...] | None
    vector_available: bool
    connections: int
    max_connections: int
    autovacuum: bool


@dataclass(frozen=True, kw_only=True)
class Scan:
    """How the scan of the largest user's vectors really ran. `heap_fetches`: rows for which the index was not enough."""

    rows: int
    index_only: bool
    heap_fetches: int


def connect_problem(database_url: str, *, timeout_seconds: int) -> str | None:
    """What the driver says when it cannot connect (it names host, user and database, never the password), or None."""
    check_url(database_url)
    try:
        psycopg.connect(database_url, **network(database_url, connect_seconds=timeout_seconds)).close()
    except psycopg.OperationalError as exc:
        return " ".join(str(exc).split())
    return None


_SERVER = """
SELECT current_setting('server_version'), pg_is_in_recovery(),
       (SELECT extversion FROM pg_extension WHERE extname = 'vector'),
       EXISTS (SELECT 1 FROM pg_available_extensions WHERE name = 'vector'),
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
       current_setting('max_connections')::integer, current_setting('autovacuum')::boolean
"""


def server(conn: Connection) -> Server:
    row = conn.execute(_SERVER).fetchone()
    assert row is not None
    version, standby, vector, available, connections, most, autovacuum = row
    return Server(
        version=version.split()[0],
        standby=standby,
        vector=None if vector is None else tuple(int(part) for part in vector.split(".") if part.isdigit()),
        vector_available=available,
        connections=connections,
        max_connections=most,
        autovacuum=autovacuum,
    )


def applied_migrations(conn: Connection) -> set[str]:
    """Names of what was applied; empty on a database that was never migrated."""
    row = conn.execute("SELECT to_regclass('schema_migrations') IS NOT NULL").fetchone()
    if row is None or not row[0]:
        return set()
    return {name for (name,) in conn.execute("SELECT name FROM schema_migrations")}


def clock(conn: Connection) -> datetime:
    """The database's clock now, whenever the transaction began."""
    row = conn.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    now: datetime = row[0]
    return now


_LARGEST = "SELECT user_no FROM index_sizes WHERE index_no = %s AND vectors > 0 ORDER BY vectors DESC, user_no LIMIT 1"


def largest_scan(conn: Connection, index: SearchIndex) -> Scan | None:
    """Run the dense search of the user with the most vectors, as recall would; None when there are no vectors."""
    row = conn.execute(_LARGEST, (index.index_no,)).fetchone()
    if row is None or index.dimension is None:
        return None
    scope = search.Scope(user_no=row[0], index_no=index.index_no)
    probe = np.zeros(index.dimension, np.float32) if index.probe is None else index.probe
    values = {**scope.values(), "query": vector_literal(probe), "limit": 1}
    ran = [node for node in scans(conn, search.dense_sql(scope), values) if node.get("Relation Name") == "vectors"]
    return Scan(
        rows=sum(int(node["Actual Rows"]) for node in ran),
        index_only=all(node["Node Type"] == "Index Only Scan" for node in ran),
        heap_fetches=sum(int(node.get("Heap Fetches", 0)) for node in ran),
    )


def scans(conn: Connection, statement: str, values: Mapping[str, object]) -> list[Mapping[str, Any]]:
    """Run the statement; the scans of its plan, with what EXPLAIN (ANALYZE) counted of each."""
    row = conn.execute(b"EXPLAIN (ANALYZE, FORMAT JSON) " + statement.encode(), values).fetchone()
    assert row is not None
    (explained,) = row[0]
    return [node for node in _nodes(explained["Plan"]) if "Scan" in node["Node Type"]]


def _nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)
