"""The two arms of the search and the loading of what they found. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calmem import cosine
from calmem.model import DenseHit, Item, WordHit
from calmem.storage.indexes import vector_literal
from calmem.storage.pool import Connection
from calmem.storage.vectors import parse_halves


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What one search may see: one user's chunks in one index, less the hidden, inside [since, until)."""

    user_no: int
    index_no: int
    hidden: Sequence[int] = ()  # chunk_nos of the active context
    session_no: int | None = None
    since: datetime | None = None
    until: datetime | None = None

    def values(self) -> dict[str, object]:
        return {
            "user_no": self.user_no,
            "index_no": self.index_no,
            "hidden": list(self.hidden),
            "session_no": self.session_no,
            "since": self.since,
            "until": self.until,
        }

    @property
    def narrowed(self) -> bool:
        return not (self.session_no is None and self.since is None and self.until is None)

    def where(self, alias: str) -> str:
        """Conditions on a row of chunks beyond user and index; only those that are needed."""
        parts = []
        if self.hidden:
            parts.append(f"AND {alias}.chunk_no <> ALL(%(hidden)s::bigint[])")
        if self.session_no is not None:
            parts.append(f"AND {alias}.session_no = %(session_no)s")
        if self.since is not None:
            parts.append(f"AND {alias}.created_at >= %(since)s")
        if self.until is not None:
            parts.append(f"AND {alias}.created_at < %(until)s")
        return " ".join(parts)


_HIDDEN_FROM = "SELECT chunk_no FROM chunks WHERE user_no = %s AND session_no = %s AND seq >= %s"
_HIDDEN_IDS = """
SELECT c.chunk_no FROM messages m JOIN chunks c USING (user_no, message_no)
WHERE m.user_no = %s AND m.session_no = %s AND m.message_id = ANY(%s)
"""


def hidden_from_seq(conn: Connection, user_no: int, session_no: int, seq: int) -> list[int]:
    """Chunks of the session's messages at `seq` and later."""
    return [no for (no,) in conn.execute(_HIDDEN_FROM, (user_no, session_no, seq))]


def hidden_by_id(conn: Connection, user_no: int, session_no: int, message_ids: Sequence[str]) -> list[int]:
    """Chunks of those messages of the session; ids that are not there are ignored."""
    return [no for (no,) in conn.execute(_HIDDEN_IDS, (user_no, session_no, list(message_ids)))]


# Index-only: `vectors_scan` covers user, index, chunk and the vector itself (docs/decisions/0001-exact-scan.md).
_DENSE = """
SELECT v.chunk_no, -(v.embedding <#> %(query)s::halfvec), v.embedding
FROM vectors v
WHERE v.user_no = %(user_no)s AND v.index_no = %(index_no)s {where}
"""
_NEAREST = "ORDER BY v.embedding <#> %(query)s::halfvec, v.chunk_no LIMIT %(limit)s"
_CROWD = "AND v.embedding <#> %(query)s::halfvec <= -(%(floor)s::float8)"
_DENSE_HIDDEN = "AND v.chunk_no <> ALL(%(hidden)s::bigint[])"
_DENSE_NARROWED = """AND v.chunk_no IN (
    SELECT c.chunk_no FROM chunks c WHERE c.user_no = %(user_no)s AND c.index_no = %(index_no)s {where})"""


def dense_sql(scope: Scope, end: str = _NEAREST) -> str:
    """The statement of `dense` for this scope, so that a test can ask for its plan."""
    if scope.narrowed:
        return _DENSE.format(where=_DENSE_NARROWED.format(where=scope.where("c"))) + end
    return _DENSE.format(where=_DENSE_HIDDEN if scope.hidden else "") + end


def dense(conn: Connection, scope: Scope, query: NDArray[np.float32], limit: int) -> list[DenseHit]:
    """The `limit` nearest chunks by cosine, exactly: every vector in scope is compared; ties by chunk_no.

    `query`: (dimension,), unit length. Cosine is the inner product, since stored vectors are unit length too. Postgres
    orders by half precision of the query and sums in float32; what may belong to the best is compared again exactly.
    """
    values = {**scope.values(), "query": vector_literal(query), "limit": limit + cosine.MARGIN}
    error = float(np.linalg.norm(query - query.astype(np.float16))) * 1.001 + cosine.sum_error(len(query))
    with conn.cursor(binary=True) as cursor:
        rows = cursor.execute(dense_sql(scope).encode(), values).fetchall()
        found = _compare(rows, query, limit)
        full = len(rows) == limit + cosine.MARGIN
        if full and rows[-1][1] + error >= found[-1].cosine:
            # So many alike (the same text again and again) that one left out may be as near as the last one taken.
            values["floor"] = found[-1].cosine - error
            rows = cursor.execute(dense_sql(scope, _CROWD).encode(), values).fetchall()
            found = _compare(rows, query, limit)
    return found


def _compare(rows: Sequence[tuple[Any, ...]], query: NDArray[np.float32], limit: int) -> list[DenseHit]:
    halves = parse_halves([row[2] for row in rows], len(query))
    return cosine.best(np.array([row[0] for row in rows], np.int64), cosine.exact(halves, query), limit)


# BM25 (Robertson and Zaragoza 2009, k1 = 1.2, b = 0.75, idf as in Lucene, never negative) over the rows that match.
# The inner join sees only the hash, so that GIN is the one way in; the user is checked outside of it.
# A word in `common` chunks or more says little and costs most: it counts only when the query has no rarer one.
# float8 throughout: numeric made the sums three times as slow.
_WORDS = """
WITH size AS MATERIALIZED (
    SELECT count(*)::float8 AS n, greatest(avg(n_tokens), 1)::float8 AS mean
    FROM chunks WHERE user_no = %(user_no)s AND index_no = %(index_no)s
), hit AS MATERIALIZED (
    SELECT q.i, q.weight, c.chunk_no, c.n_tokens::float8 AS n_tokens,
           cardinality(array_positions(c.tokens, q.token))::float8 AS tf
    FROM unnest(%(tokens)s::bigint[], %(weights)s::float8[]) WITH ORDINALITY AS q(token, weight, i)
    CROSS JOIN LATERAL (
        SELECT * FROM chunks WHERE tokens @> ARRAY[q.token] {where} LIMIT %(common)s
    ) AS c
    WHERE c.user_no = %(user_no)s AND c.index_no = %(index_no)s
), idf AS MATERIALIZED (
    SELECT c.i, ln(1 + (size.n - c.df + 0.5::float8) / (c.df + 0.5::float8)) AS idf, size.mean
    FROM (SELECT i, count(*)::float8 AS df FROM hit GROUP BY i) AS c CROSS JOIN size
    WHERE c.df < %(common)s OR NOT EXISTS (SELECT 1 FROM hit GROUP BY i HAVING count(*) < %(common)s)
)
SELECT hit.chunk_no,
       sum(hit.weight * idf.idf * hit.tf * 2.2::float8
           / (hit.tf + 0.3::float8 + 0.9::float8 * hit.n_tokens / idf.mean)) AS bm25,
       bit_or(1::bigint << (hit.i - 1)::int)
FROM hit JOIN idf USING (i)
GROUP BY hit.chunk_no ORDER BY bm25 DESC, hit.chunk_no LIMIT %(limit)s
"""
# One bit of a bigint per token of the query.
MAX_TOKENS = 62
COMMON = 5_000


def words(conn: Connection, scope: Scope, tokens: Sequence[int], weights: Sequence[float], limit: int) -> list[WordHit]:
    """The `limit` best chunks by BM25 over the query's keyed tokens (one weight each; the first 62 count)."""
    tokens, weights = tokens[:MAX_TOKENS], weights[:MAX_TOKENS]
    values = {**scope.values(), "tokens": list(tokens), "weights": list(weights), "limit": limit, "common": COMMON}
    rows = conn.execute(_WORDS.format(where=scope.where("chunks")).encode(), values)
    return [
        WordHit(chunk_no=no, bm25=bm25, matched=tuple(i for i in range(len(tokens)) if bits >> i & 1))
        for no, bm25, bits in rows
    ]


# A hit with the first piece of the messages around it. The neighbours obey the scope like the hits do.
_LOAD = """
SELECT DISTINCT ON (s.session_no, c.seq, c.start_char, c.chunk_no)
       c.chunk_no, m.message_id, s.session_id, c.seq, m.role, m.name, m.created_at, c.start_char, c.end_char,
       substr(m.content, c.start_char + 1, c.end_char - c.start_char)
FROM chunks h
JOIN chunks c ON c.user_no = h.user_no AND c.session_no = h.session_no AND c.seq BETWEEN h.seq - %(reach)s AND h.seq + %(reach)s
    AND c.index_no = h.index_no AND (c.chunk_no = h.chunk_no OR (c.seq <> h.seq AND c.start_char = 0))
JOIN messages m ON m.user_no = c.user_no AND m.message_no = c.message_no
JOIN sessions s ON s.user_no = c.user_no AND s.session_no = c.session_no
WHERE h.user_no = %(user_no)s AND h.index_no = %(index_no)s AND h.chunk_no = ANY(%(chunk_nos)s::bigint[]) {where}
ORDER BY s.session_no, c.seq, c.start_char, c.chunk_no
"""


def load_items(conn: Connection, scope: Scope, chunk_nos: Sequence[int], *, reach: int) -> list[Item]:
    """The chunks with their text, and the neighbours up to `reach` messages away; not scored, by session and seq."""
    values = {**scope.values(), "chunk_nos": list(chunk_nos), "reach": reach}
    rows = conn.execute(_LOAD.format(where=scope.where("c")).encode(), values)
    return [
        Item(
            chunk_no=chunk_no,
            message_id=message_id,
            session_id=session_id,
            seq=seq,
            role=role,
            name=name,
            created_at=created_at,
            start=start,
            end=end,
            text=text,
        )
        for chunk_no, message_id, session_id, seq, role, name, created_at, start, end, text in rows
    ]


_HAS_MEMORY = (
    "SELECT EXISTS (SELECT 1 FROM messages WHERE user_no = %s) OR EXISTS (SELECT 1 FROM facts WHERE user_no = %s)"
)


def has_memory(conn: Connection, user_no: int) -> bool:
    row = conn.execute(_HAS_MEMORY, (user_no, user_no)).fetchone()
    return row is not None and bool(row[0])


# Local to the transaction, so that it also holds behind a pooler. One user's scan is short: parallel workers and
# JIT cost more than they give, and reading the whole table instead of the user's part is never right.
_BOUND = """
SELECT set_config('statement_timeout', %s, true), set_config('max_parallel_workers_per_gather', '0', true),
       set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true), set_config('work_mem', '32MB', true)
"""


def bound_reads(conn: Connection, milliseconds: int) -> None:
    """Set up this transaction for search: statements past that time end with an error; plans follow the user."""
    conn.execute(_BOUND, (str(max(1, milliseconds)),))
