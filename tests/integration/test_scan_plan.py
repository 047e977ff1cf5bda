"""The cost of a search follows the user: the scan of the vectors stays inside one index."""

from __future__ import annotations

import numpy as np
import psycopg
import pytest

from calmem.settings import Settings
from calmem.storage import search
from calmem.storage.indexes import vector_literal
from calmem.storage.inspection import scans
from calmem.storage.pool import Database, bound_reads
from calmem.storage.search import Scope

USERS, CHUNKS, DIMENSION = 5, 300, 384

_FILL = """
INSERT INTO vectors (user_no, index_no, chunk_no, embedding)
SELECT 1 + n %% %(users)s, 1, n, %(vector)s::halfvec FROM generate_series(1, %(rows)s) AS n
"""


@pytest.fixture
def vacuumed(settings: Settings) -> Settings:
    """Several users' vectors, their rows mixed, vacuumed as autovacuum keeps them."""
    values = {"users": USERS, "rows": USERS * CHUNKS, "vector": vector_literal(_unit())}
    with psycopg.connect(settings.database_url, autocommit=True) as conn:
        conn.execute("SET session_replication_role = replica")  # vectors alone, without their chunks
        conn.execute(_FILL, values)
        conn.execute("VACUUM ANALYZE vectors")
    return settings


@pytest.mark.parametrize("hidden", [(), (3, 8)], ids=["all", "some hidden"])
def test_the_scan_of_vectors_reads_nothing_but_the_index(vacuumed: Settings, hidden: tuple[int, ...]) -> None:
    scope = Scope(user_no=3, index_no=1, hidden=hidden)
    values = {**scope.values(), "query": vector_literal(_unit()), "limit": 200}
    with Database(vacuumed) as database, database.connection() as conn:
        bound_reads(conn, 10_000)
        (scan,) = scans(conn, search.dense_sql(scope), values)
    assert (scan["Node Type"], scan["Index Name"]) == ("Index Only Scan", "vectors_scan")
    assert scan["Heap Fetches"] == 0
    assert scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0) == CHUNKS


def _unit() -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    vector: np.ndarray[tuple[int], np.dtype[np.float32]] = np.full(DIMENSION, DIMENSION**-0.5, dtype=np.float32)
    return vector
