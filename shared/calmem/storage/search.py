"""The two arms of the search and the loading of what they found. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calmem import cosine
from calmem.hits import DenseHit, Place, QueryToken, WordHit, WordHits
from calmem.model import Item
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


_HIDDEN_FROM = """
SELECT c.chunk_no FROM sessions s JOIN chunks c USING (user_no, session_no)
WHERE s.user_no = %s AND c.index_no = %s AND s.session_id = %s AND c.seq >= %s
"""
_HIDDEN_IDS = """
SELECT c.chunk_no FROM sessions s JOIN messages m USING (user_no, session_no) JOIN chunks c USING (user_no, message_no)
WHERE s.user_no = %s AND c.index_no = %s AND s.session_id = %s AND m.message_id = ANY(%s)
"""


def hidden_from_seq(conn: Connection, user_no: int, index_no: int, session_id: str, seq: int) -> list[int]:
    """The index's chunks of the session's messages at `seq` and later."""
    return [no for (no,) in conn.execute(_HIDDEN_FROM, (user_no, index_no, session_id, seq))]


def hidden_by_id(
    conn: Connection, user_no: int, index_no: int, session_id: str, message_ids: Sequence[str]
) -> list[int]:
    """The index's chunks of those messages of the session; ids that are not there are ignored."""
    return [no for (no,) in conn.execute(_HIDDEN_IDS, (user_no, index_no, session_id, list(message_ids)))]


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
# The inner join sees only the hash, so that GIN is the one way in; the user is checked outside of it. The index is
# checked inside, since two indexes of one user hold the same hashes, and "+ 0" keeps it from being a way in.
# A word in `common` chunks or more costs most and says least: where the query has a rarer one, it is counted only in
# the chunks that have a rarer one, and its df is estimated from its share of those.
# What share of the query a chunk covers goes by idf too, among `others` more chunks that have none of its words: in a
# history of three messages every word would be common.
# How many chunks there are is not counted: those with a vector are known, and of those without one, all but the first
# piece of a long message are left out for a moment. Their mean length is the first `sampled` chunks'.
# float8 throughout: numeric made the sums three times as slow.
_WORDS = """
WITH size AS MATERIALIZED (
    SELECT (coalesce((SELECT vectors FROM index_sizes WHERE user_no = %(user_no)s AND index_no = %(index_no)s), 0) + (
        SELECT count(*) FROM (
            SELECT 1 FROM index_tasks WHERE user_no = %(user_no)s AND index_no = %(index_no)s LIMIT %(most_pending)s
        ) AS pending
    ))::float8 AS n, greatest(1, (
        SELECT avg(n_tokens) FROM (
            SELECT n_tokens FROM chunks WHERE user_no = %(user_no)s AND index_no = %(index_no)s
            ORDER BY chunk_no LIMIT %(sampled)s
        ) AS sample
    ))::float8 AS mean
), query AS MATERIALIZED (
    SELECT * FROM unnest(%(tokens)s::bigint[], %(weights)s::float8[], %(identifiers)s::boolean[])
        WITH ORDINALITY AS q(token, weight, identifier, i)
), counted AS MATERIALIZED (
    SELECT q.i, q.token, (
        SELECT count(*)::float8 FROM (
            SELECT user_no FROM chunks WHERE tokens @> ARRAY[q.token] AND index_no + 0 = %(index_no)s {where} LIMIT %(common)s
        ) AS c WHERE c.user_no = %(user_no)s
    ) AS df
    FROM query q
), rare AS MATERIALIZED (
    SELECT i, token, df FROM counted
    WHERE df > 0 AND (df < %(common)s OR NOT EXISTS (SELECT 1 FROM counted WHERE df > 0 AND df < %(common)s))
), hit AS MATERIALIZED (
    SELECT rare.i, rare.token, c.chunk_no, c.session_no, c.seq, c.created_at, c.n_tokens, c.tokens
    FROM rare CROSS JOIN LATERAL (
        SELECT * FROM chunks WHERE tokens @> ARRAY[rare.token] AND index_no + 0 = %(index_no)s {where} LIMIT %(common)s
    ) AS c
    WHERE c.user_no = %(user_no)s
), candidate AS MATERIALIZED (
    SELECT DISTINCT ON (chunk_no) * FROM hit
), found AS MATERIALIZED (
    SELECT * FROM hit
    UNION ALL
    SELECT counted.i, counted.token, candidate.chunk_no, candidate.session_no, candidate.seq, candidate.created_at,
           candidate.n_tokens, candidate.tokens
    FROM counted CROSS JOIN candidate
    WHERE counted.df > 0 AND NOT EXISTS (SELECT 1 FROM rare WHERE rare.i = counted.i)
        AND candidate.tokens @> ARRAY[counted.token]
), estimated AS MATERIALIZED (
    SELECT i, df FROM rare
    UNION ALL
    SELECT found.i, greatest(%(common)s, size.n * (count(*) + 1) / ((SELECT count(*) FROM candidate) + 2))
    FROM found CROSS JOIN size WHERE NOT EXISTS (SELECT 1 FROM rare WHERE rare.i = found.i) GROUP BY found.i, size.n
), word AS MATERIALIZED (
    SELECT query.i, query.weight, query.identifier, size.mean,
           ln(1 + (greatest(size.n, e.df) - e.df + 0.5::float8) / (e.df + 0.5::float8)) AS idf,
           query.weight * ln(1 + (greatest(size.n, e.df) + %(others)s - e.df + 0.5::float8) / (e.df + 0.5::float8)) AS mass
    FROM estimated AS e JOIN query USING (i) CROSS JOIN size
), mass AS MATERIALIZED (
    SELECT (SELECT sum(word.mass) FROM word) AS known,
           (SELECT coalesce(sum(query.weight), 0) * ln(2 * (size.n + %(others)s) + 2)
            FROM query JOIN counted USING (i) WHERE df = 0) AS unknown
    FROM size
), tf AS MATERIALIZED (
    SELECT i, chunk_no, session_no, seq, created_at, n_tokens::float8 AS n_tokens,
           cardinality(array_positions(tokens, token))::float8 AS tf
    FROM found
)
SELECT tf.chunk_no, tf.session_no, tf.seq, tf.created_at,
       sum(word.weight * word.idf * tf.tf * 2.2::float8
           / (tf.tf + 0.3::float8 + 0.9::float8 * tf.n_tokens / word.mean)) AS bm25,
       sum(word.mass) / (mass.known + mass.unknown), bool_or(word.identifier), mass.known / (mass.known + mass.unknown)
FROM tf JOIN word USING (i) CROSS JOIN mass
GROUP BY tf.chunk_no, tf.session_no, tf.seq, tf.created_at, mass.known, mass.unknown ORDER BY bm25 DESC, tf.chunk_no LIMIT %(limit)s
"""
COMMON = 1_000
_SAMPLED = 1_000
_MOST_PENDING = 10_000
_OTHERS = 100.0


def words(conn: Connection, scope: Scope, asked: Sequence[QueryToken], limit: int) -> WordHits:
    """The `limit` best chunks by BM25 over the query's distinct tokens."""
    values = {
        **scope.values(),
        "tokens": [one.token for one in asked],
        "weights": [one.weight for one in asked],
        "identifiers": [one.identifier for one in asked],
        "limit": limit,
        "common": COMMON,
        "others": _OTHERS,
        "sampled": _SAMPLED,
        "most_pending": _MOST_PENDING,
    }
    rows = conn.execute(_WORDS.format(where=scope.where("chunks")).encode(), values).fetchall()
    return WordHits(
        hits=[
            WordHit(
                chunk_no=no,
                place=Place(session_no, seq),
                sent=sent,
                bm25=bm25,
                covered=covered,
                identifier=identifier,
            )
            for no, session_no, seq, sent, bm25, covered, identifier, _ in rows
        ],
        known=rows[0][-1] if rows else 0.0,
    )


_PLACES = """
SELECT chunk_no, session_no, seq, created_at FROM chunks WHERE user_no = %s AND index_no = %s AND chunk_no = ANY(%s::bigint[])
"""


def places(conn: Connection, scope: Scope, chunk_nos: Sequence[int]) -> tuple[dict[int, Place], dict[int, datetime]]:
    """Where the messages of these chunks stand, and when they were sent, by chunk_no."""
    rows = conn.execute(_PLACES, (scope.user_no, scope.index_no, list(chunk_nos))).fetchall()
    return {no: Place(session_no, seq) for no, session_no, seq, _ in rows}, {no: sent for no, _, _, sent in rows}


# The messages beside a hit come with their first piece; they obey the scope like the hits do.
_LOAD = """
WITH wanted AS MATERIALIZED (
    SELECT chunk_no FROM unnest(%(chunk_nos)s::bigint[]) AS h(chunk_no)
    UNION
    SELECT c.chunk_no FROM unnest(%(sessions)s::bigint[], %(seqs)s::bigint[]) AS p(session_no, seq)
    JOIN chunks c ON c.user_no = %(user_no)s AND c.session_no = p.session_no AND c.seq = p.seq
        AND c.index_no = %(index_no)s AND c.start_char = 0
)
SELECT c.session_no, c.chunk_no, m.message_id, s.session_id, c.seq, m.role, m.name, m.created_at, c.start_char, c.end_char,
       substr(m.content, c.start_char + 1, c.end_char - c.start_char)
FROM wanted w
JOIN chunks c ON c.user_no = %(user_no)s AND c.index_no = %(index_no)s AND c.chunk_no = w.chunk_no
JOIN messages m ON m.user_no = c.user_no AND m.message_no = c.message_no
JOIN sessions s ON s.user_no = c.user_no AND s.session_no = c.session_no
WHERE true {where}
ORDER BY c.session_no, c.seq, c.start_char, c.chunk_no
"""


def load_items(
    conn: Connection, scope: Scope, chunk_nos: Sequence[int], beside: Sequence[Place]
) -> list[tuple[Place, Item]]:
    """The chunks, and the first piece of the messages at the places `beside`, with their text; not scored."""
    values = {
        **scope.values(),
        "chunk_nos": list(chunk_nos),
        "sessions": [place.session_no for place in beside],
        "seqs": [place.seq for place in beside],
    }
    return [
        (
            Place(session_no, seq),
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
            ),
        )
        for session_no, chunk_no, message_id, session_id, seq, role, name, created_at, start, end, text in conn.execute(
            _LOAD.format(where=scope.where("c")).encode(), values
        )
    ]
