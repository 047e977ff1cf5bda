"""Vectors as arrays: what a cache reads, and pgvector's binary form of halfvec."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calmem.errors import PermanentError
from calmem.storage.pool import Connection

# Sent before the numbers: dimension and an unused field, two bytes each.
_HEAD_BYTES = 4
# Signature, flags, length of an extension that no version has used.
_COPY_HEADER_BYTES = 19
_COPY_TRAILER = b"\xff\xff"
_FILL_MILLISECONDS = 600_000


@dataclass(frozen=True, kw_only=True)
class Marks:
    """What identifies the vectors of one user in one snapshot."""

    written: int  # vectors with a higher number are newer
    removed: str  # another one: something was removed


@dataclass(frozen=True, kw_only=True)
class Vectors:
    """Rows side by side, in the order of `written`."""

    chunk_nos: NDArray[np.int64]
    written: NDArray[np.int64]
    halves: NDArray[np.float16]  # (rows, dimension)


def parse_halves(rows: Sequence[bytes], dimension: int) -> NDArray[np.float16]:
    """(rows, dimension) of halfvecs in pgvector's binary form. Raises PermanentError when one has another dimension."""
    if any(len(row) != _HEAD_BYTES + 2 * dimension for row in rows):
        raise PermanentError(f"a stored vector has not {dimension} dimensions, as its model has")
    whole = np.frombuffer(b"".join(rows), dtype=">f2").reshape(len(rows), _HEAD_BYTES // 2 + dimension)
    return whole[:, _HEAD_BYTES // 2 :].astype(np.float16)


# One statement, so that marks and rows are of one snapshot.
_SINCE = """
SELECT u.vectors_written, u.vectors_removed::text, v.chunk_no, v.written, v.binary
FROM users u LEFT JOIN LATERAL (
    SELECT chunk_no, written, halfvec_send(embedding) AS binary FROM vectors
    WHERE user_no = u.user_no AND index_no = %(index_no)s AND written > %(after)s AND written > 0
    ORDER BY written LIMIT %(limit)s
) AS v ON true
WHERE u.user_no = %(user_no)s
"""


def read_since(
    conn: Connection, *, user_no: int, index_no: int, after: int, limit: int, dimension: int
) -> tuple[Marks, Vectors] | None:
    """The marks, and the oldest `limit` vectors written after the mark `after`; None when the user is gone."""
    values = {"user_no": user_no, "index_no": index_no, "after": after, "limit": limit}
    rows = conn.execute(_SINCE, values).fetchall()
    if not rows:
        return None
    marks = Marks(written=rows[0][0], removed=rows[0][1])
    rows = [row for row in rows if row[2] is not None]
    return marks, Vectors(
        chunk_nos=np.array([row[2] for row in rows], np.int64),
        written=np.array([row[3] for row in rows], np.int64),
        halves=parse_halves([row[4] for row in rows], dimension),
    )


_ONE_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
# An index-only scan whatever the statistics say; a large user's may take long.
_SET_UP = "SELECT set_config('statement_timeout', %s, true), set_config('enable_seqscan', 'off', true)"
# Counted in chunks, whose key is narrow; nearly every one has its vector.
_MARKS = """
SELECT vectors_written, vectors_removed::text,
       (SELECT count(*) FROM chunks c WHERE c.user_no = u.user_no AND c.index_no = %s)
FROM users u WHERE u.user_no = %s
"""
_ALL = """
COPY (SELECT chunk_no, embedding FROM vectors WHERE user_no = %s AND index_no = %s ORDER BY chunk_no)
TO STDOUT (FORMAT binary)
"""


def read_all(
    conn: Connection, *, user_no: int, index_no: int, dimension: int, slice_rows: int
) -> tuple[Marks, int, Generator[Vectors, None, None]] | None:
    """The marks, about how many vectors the user has, and all of them by slices, in one snapshot.

    None when the user is gone.

    The first statements of their transaction. Read the iterator to its end, or end the transaction.
    """
    conn.execute(_ONE_SNAPSHOT)
    conn.execute(_SET_UP, (str(_FILL_MILLISECONDS),))
    row = conn.execute(_MARKS, (index_no, user_no)).fetchone()
    if row is None:
        return None
    marks = Marks(written=row[0], removed=row[1])
    return marks, row[2], _slices(conn, user_no, index_no, dimension, slice_rows, marks.written)


def _slices(
    conn: Connection, user_no: int, index_no: int, dimension: int, slice_rows: int, written: int
) -> Generator[Vectors, None, None]:
    form = np.dtype(
        [
            ("fields", ">i2"),
            ("no_bytes", ">i4"),
            ("chunk_no", ">i8"),
            ("bytes", ">i4"),
            ("dimension", ">i2"),
            ("unused", ">i2"),
            ("half", ">f2", (dimension,)),
        ]
    )
    kept = bytearray()
    header = _COPY_HEADER_BYTES
    with conn.cursor() as cursor, cursor.copy(_ALL, (user_no, index_no)) as copy:
        for data in copy:
            kept += data
            if header and len(kept) >= header:
                del kept[:header]
                header = 0
            if len(kept) >= slice_rows * form.itemsize:
                yield _parsed(kept[: slice_rows * form.itemsize], form, dimension, written)
                del kept[: slice_rows * form.itemsize]
    if kept[-2:] != _COPY_TRAILER:
        raise PermanentError("the database sent vectors in a form that is not known")
    del kept[-2:]
    if kept:
        yield _parsed(kept, form, dimension, written)


def _parsed(data: bytearray, form: np.dtype[Any], dimension: int, written: int) -> Vectors:
    if len(data) % form.itemsize:
        raise PermanentError(f"a stored vector has not {dimension} dimensions, as its model has")
    rows = np.frombuffer(data, dtype=form)
    if (rows["dimension"] != dimension).any():
        raise PermanentError(f"a stored vector has not {dimension} dimensions, as its model has")
    return Vectors(
        chunk_nos=rows["chunk_no"].astype(np.int64),
        written=np.full(len(rows), written, np.int64),
        halves=rows["half"].astype(np.float16),
    )


_REMOVED = """
SELECT u.user_no, u.vectors_removed::text, i.index_no
FROM users u CROSS JOIN search_indexes i WHERE i.state = 'active' AND u.user_no = ANY(%s)
"""


def removal_marks(conn: Connection, user_nos: Sequence[int]) -> dict[tuple[int, int], str]:
    """`Marks.removed` by (user_no, active index_no); users who are gone are missing."""
    rows = conn.execute(_REMOVED, (list(user_nos),))
    return {(user_no, index_no): removed for user_no, removed, index_no in rows}
