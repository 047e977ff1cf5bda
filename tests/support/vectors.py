"""Users with vectors of the test's own, written by the worker's statements, without a model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from calmem.model import Claim, NewChunk, Span
from calmem.storage import tasks
from calmem.storage.pool import Connection, Database

_numbers = itertools.count(1)

_USER = "INSERT INTO users (user_id, key) VALUES (%s, '0123456789abcdef') RETURNING user_no"
_SESSION = "INSERT INTO sessions (user_no, session_id) VALUES (%s, %s) RETURNING session_no"
_SAY = """
WITH m AS (
    INSERT INTO messages (user_no, session_no, message_id, seq, role, content, created_at)
    SELECT %(user_no)s, %(session_no)s, %(user_no)s || '-' || n, n, 'user', 'word', '2025-01-01Z'
    FROM generate_series(%(first)s::int, %(last)s::int) AS n
    RETURNING *
)
INSERT INTO chunks (user_no, index_no, session_no, message_no, seq, created_at, start_char, end_char, tokens)
SELECT user_no, 1, session_no, message_no, seq, created_at, 0, 4, '{1}' FROM m ORDER BY seq
RETURNING chunk_no, message_no, seq
"""
_LEASE = """
INSERT INTO index_tasks (user_no, message_no, index_no, lane, attempts, lease_token, lease_until)
SELECT %s, m, 1, 'live', 1, %s, now() + interval '1 hour' FROM unnest(%s::bigint[]) AS m
"""


class Told:
    """A new user with one session; every message has one chunk. `vectors` by chunk_no, as they are stored."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.user_id = f"told-{next(_numbers)}"
        self.session_id = f"{self.user_id}-s"
        with database.connection() as conn:
            self.user_no = _number(conn, _USER, (self.user_id,))
            self.session_no = _number(conn, _SESSION, (self.user_no, self.session_id))
        self.vectors: dict[int, NDArray[np.float16]] = {}
        self._places: dict[int, tuple[int, int]] = {}

    def say(self, vectors: NDArray[np.float32]) -> list[int]:
        """One message for each vector; the vectors themselves are written later. Returns chunk_nos."""
        first = len(self.vectors) + 1
        values = {"user_no": self.user_no, "session_no": self.session_no, "first": first}
        with self.database.connection() as conn:
            rows = conn.execute(_SAY, {**values, "last": first + len(vectors) - 1}).fetchall()
        rows.sort(key=lambda row: int(row[2]))
        for (chunk_no, message_no, seq), vector in zip(rows, vectors, strict=True):
            self.vectors[chunk_no] = vector.astype(np.float16)
            self._places[chunk_no] = (message_no, seq)
        return [int(row[0]) for row in rows]

    def write(self, conn: Connection, chunk_nos: Sequence[int]) -> None:
        """Write these chunks' vectors as a worker does at the end of a batch."""
        token = uuid4()
        conn.execute(_LEASE, (self.user_no, token, [self._places[no][0] for no in chunk_nos]))
        results = [
            (
                Claim(
                    user_no=self.user_no,
                    message_no=self._places[no][0],
                    session_no=self.session_no,
                    seq=self._places[no][1],
                    created_at=datetime(2025, 1, 1, tzinfo=UTC),
                    name=None,
                    user_key=b"0123456789abcdef",
                    attempts=1,
                    size=4,
                ),
                [NewChunk(span=Span(start=0, end=4), chunk_no=no, vector=self.vectors[no].astype(np.float32))],
            )
            for no in chunk_nos
        ]
        assert tasks.finish(conn, token=token, index_no=1, results=results) == len(chunk_nos)

    def add(self, vectors: NDArray[np.float32]) -> list[int]:
        """Messages with their vectors; the chunk_nos."""
        nos = self.say(vectors)
        if nos:
            with self.database.connection() as conn:
                self.write(conn, nos)
        return nos

    def message_id(self, chunk_no: int) -> str:
        return f"{self.user_no}-{self._places[chunk_no][1]}"


def units(rng: np.random.Generator, rows: int, dimension: int) -> NDArray[np.float32]:
    """(rows, dimension) random vectors of unit length."""
    vectors = rng.standard_normal((rows, dimension)).astype(np.float32)
    unit: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


def _number(conn: Connection, sql: str, values: tuple[object, ...]) -> int:
    row = conn.execute(sql.encode(), values).fetchone()
    assert row is not None
    return int(row[0])
