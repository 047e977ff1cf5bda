"""A user with little beside one with much: nothing of the small one is missed, nothing of the large one read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import psycopg
import pytest

from calmem import words
from calmem.memory import Memory
from calmem.models import Models
from calmem.queueing import WakeUps
from calmem.settings import Settings
from calmem.storage import indexes, search, users
from calmem.storage.indexes import vector_literal
from calmem.storage.pool import Connection, Database, bound_reads
from calmem.storage.search import Scope
from calmem_workers.index import Drainer

LARGE, DISTINCT = 100_000, 500
QUERY = "roses by the gate"
ROSES = [f"The roses by the gate flower again, note {number}." for number in range(10)]

_CHUNKS = """
INSERT INTO chunks (user_no, index_no, session_no, message_no, seq, created_at, start_char, end_char, tokens)
SELECT %(user_no)s, 1, 0, n, n, now(), 0, 10, %(tokens)s::bigint[] FROM generate_series(1, %(rows)s) AS n
"""
_VECTORS = """
INSERT INTO vectors (user_no, index_no, chunk_no, embedding)
SELECT c.user_no, 1, c.chunk_no, ((%(vectors)s::text[])[1 + c.chunk_no %% %(distinct)s])::halfvec
FROM chunks c WHERE c.user_no = %(user_no)s
"""


@pytest.fixture
def crowded(settings: Settings) -> Iterator[Database]:
    """Bob's ten messages, indexed; and 100,000 chunks of ada's with the same words, nearer to the query than bob's.

    Ada's vectors are drawn at random around the query's own: the text behind them does not matter.
    """
    with Memory(settings=settings) as memory:
        memory.put_user("ada")
        memory.record_many([{"user_id": "bob", "session_id": "b", "role": "user", "content": line} for line in ROSES])
    with Database(settings) as database:
        assert Drainer(database, settings, Models(settings), WakeUps("")).drain() == 10
        with database.connection() as conn:
            index, ada = indexes.active_index(conn), users.get_user(conn, "ada")
        assert ada is not None
        query = Models(settings).for_index(index).embed_query(QUERY)
        drawn = query + np.random.default_rng(1).normal(0, 0.002, (DISTINCT, query.size))
        drawn = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
        values = {
            "user_no": ada.user_no,
            "tokens": words.key_tokens(ada.key, words.index_words(ROSES[0])),
            "vectors": [vector_literal(vector) for vector in drawn],
            "rows": LARGE,
            "distinct": DISTINCT,
        }
        with psycopg.connect(settings.database_url, autocommit=True) as conn:
            conn.execute("SET session_replication_role = replica")  # chunks alone, without their messages
            conn.execute(_CHUNKS, values)
            conn.execute(_VECTORS, values)
            conn.execute("VACUUM ANALYZE vectors, chunks")
        yield database


def read_from(conn: Connection) -> dict[str, int]:
    """Rows that this transaction read by scans of each table, and entries by scans of each of their indexes."""
    tables = conn.execute(
        "SELECT relname, seq_tup_read FROM pg_stat_xact_user_tables WHERE relname IN ('chunks', 'vectors')"
    ).fetchall()
    entries = conn.execute(
        "SELECT indexrelid::regclass::text, pg_stat_get_xact_tuples_returned(indexrelid) FROM pg_index "
        "WHERE indrelid IN ('chunks'::regclass, 'vectors'::regclass)"
    ).fetchall()
    return {str(name): int(rows) for name, rows in (*tables, *entries) if rows}


def test_a_small_user_beside_a_large_one(crowded: Database, settings: Settings) -> None:
    everything = replace(settings, min_cosine=-1.0)
    with Memory(settings=everything) as memory:
        for arms in (("dense",), ("words",), ("dense", "words")):
            found = memory.search(user_id="bob", query=QUERY, k=50, arms=arms)
            assert sorted(item.text for item in found) == sorted(ROSES), arms
        recalled = memory.recall(
            user_id="bob", session_id="now", query=QUERY, current_tokens=0, context_window_capacity=1000
        )
        assert sorted(item.text for item in recalled.items) == sorted(ROSES)
        assert recalled.degraded is None

    with crowded.connection() as conn:
        bob, index = users.get_user(conn, "bob"), indexes.active_index(conn)
        assert bob is not None
        bound_reads(conn, 60_000)
        vector = Models(settings).for_index(index).embed_query(QUERY)
        scope = Scope(user_no=bob.user_no, index_no=index.index_no)
        assert len(search.dense(conn, scope, vector, 200)) == 10
        assert read_from(conn) == {"vectors_scan": 10}

    with crowded.connection() as conn:
        bound_reads(conn, 60_000)
        tokens = words.query_tokens(bob.key, words.query_words(QUERY))
        assert len(search.words(conn, scope, tokens, 200).hits) == 10
        read = read_from(conn)
        # Ten for the size of the user's index, and ten for each word.
        assert set(read) == {"chunks_pkey", "chunks_tokens"}
        assert read["chunks_pkey"] == 10
        assert read["chunks_tokens"] == 2 * 10 * len(tokens)
