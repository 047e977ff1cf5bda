"""Rows of search_indexes: which model and chunking the index was made with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calmem.errors import PermanentError
from calmem.model import IndexState, SearchIndex
from calmem.storage.pool import Connection

# Any fixed number that nobody else locks: recorders share it, whoever adds or retires an index has it alone.
_LOCK = 4_742_020_002

_COLUMNS = "index_no, model, model_path, dimension, probe::text, chunk_chars, overlap_chars, min_cosine, state"
_ACTIVE = f"SELECT {_COLUMNS} FROM search_indexes WHERE state = 'active'"
IN_USE = f"SELECT {_COLUMNS} FROM search_indexes WHERE state <> 'retired' ORDER BY state <> 'active', index_no"
_BY_NUMBER = f"SELECT {_COLUMNS} FROM search_indexes WHERE index_no = ANY(%s) ORDER BY index_no"
# Two statements, so that the second one sees what was committed while the first one waited.
_LOCKED = f"SELECT pg_advisory_xact_lock_shared({_LOCK}); {IN_USE}"
_LOCK_ALONE = f"SET LOCAL lock_timeout = '10s'; SELECT pg_advisory_xact_lock({_LOCK})"


def active_index(conn: Connection) -> SearchIndex:
    """The index that recall reads. Raises PermanentError on a database that was never migrated."""
    row = conn.execute(_ACTIVE.encode()).fetchone()
    if row is None:
        raise PermanentError(_NONE)
    return _from_row(row)


def in_use(conn: Connection) -> list[SearchIndex]:
    """The active index, and the one that is built or kept beside it, if any. Raises as `active_index`."""
    return checked(conn.execute(IN_USE.encode()).fetchall())


def by_number(conn: Connection, numbers: Sequence[int]) -> list[SearchIndex]:
    """Whatever their state."""
    return [_from_row(row) for row in conn.execute(_BY_NUMBER.encode(), (list(numbers),))]


def lock_in_use(conn: Connection) -> list[SearchIndex]:
    """As `in_use`; until the commit none is added or retired. For who gives new messages to every index."""
    cursor = conn.execute(_LOCKED.encode())
    cursor.nextset()
    return checked(cursor.fetchall())


def lock_alone(conn: Connection) -> None:
    """Until the commit nobody records; from then on recorders see what was changed. Raises Overtaken after 10 s."""
    conn.execute(_LOCK_ALONE.encode())


def checked(rows: Sequence[tuple[Any, ...]]) -> list[SearchIndex]:
    """Of IN_USE. Raises PermanentError on a database that was never migrated."""
    found = [_from_row(row) for row in rows]
    if not found or found[0].state is not IndexState.ACTIVE:
        raise PermanentError(_NONE)
    return found


_NONE = "the database has no index: run `calmem db migrate`"


def _from_row(row: Sequence[Any]) -> SearchIndex:
    """Of the columns of this module's statements."""
    index_no, model, model_path, dimension, probe, chunk_chars, overlap_chars, min_cosine, state = row
    return SearchIndex(
        index_no=index_no,
        model=model,
        model_path=model_path,
        dimension=dimension,
        probe=None if probe is None else np.fromstring(probe.strip("[]"), dtype=np.float32, sep=","),
        chunk_chars=chunk_chars,
        overlap_chars=overlap_chars,
        min_cosine=min_cosine,
        state=IndexState(state),
    )


_ADD = f"""
INSERT INTO search_indexes (model, model_path, dimension, probe, chunk_chars, overlap_chars, min_cosine, state)
VALUES (%(model)s, %(model_path)s, %(dimension)s, %(probe)s::halfvec, %(chunk_chars)s, %(overlap_chars)s, %(min_cosine)s,
        'building')
RETURNING {_COLUMNS}
"""


def add_index(
    conn: Connection,
    *,
    model: str,
    model_path: str,
    probe: NDArray[np.float32],
    chunk_chars: int,
    overlap_chars: int,
    min_cosine: float | None,
) -> SearchIndex:
    """A new, empty index beside the active one; the caller holds `lock_alone`."""
    values = {
        "model": model,
        "model_path": model_path,
        "dimension": len(probe),
        "probe": vector_literal(probe),
        "chunk_chars": chunk_chars,
        "overlap_chars": overlap_chars,
        "min_cosine": min_cosine,
    }
    row = conn.execute(_ADD.encode(), values).fetchone()
    assert row is not None
    return _from_row(row)


_LOCK_STATES = "SELECT index_no FROM search_indexes WHERE state <> 'retired' ORDER BY index_no FOR NO KEY UPDATE"
# One statement: the indexes change places, and nobody ever sees none or two active ones.
_SET_STATES = """
UPDATE search_indexes i SET state = n.state
FROM unnest(%s::smallint[], %s::text[]) AS n(index_no, state) WHERE i.index_no = n.index_no
"""


def lock_states(conn: Connection) -> list[SearchIndex]:
    """As `in_use`; until the commit nobody else changes a state. Recorders and recall go on."""
    conn.execute(_LOCK_STATES)
    return in_use(conn)


def set_states(conn: Connection, states: Mapping[int, IndexState]) -> None:
    """By index_no, in one step. The caller holds `lock_states`."""
    conn.execute(_SET_STATES, (list(states), list(states.values())))


_SETTLE = """
UPDATE search_indexes SET dimension = %(dimension)s, probe = %(probe)s::halfvec
WHERE index_no = %(index_no)s AND probe IS NULL
"""


def settle_probe(conn: Connection, index_no: int, probe: NDArray[np.float32]) -> None:
    """Remember what the index's model computes; the first worker to come decides, later calls change nothing."""
    values = {"index_no": index_no, "dimension": len(probe), "probe": vector_literal(probe)}
    conn.execute(_SETTLE, values)


def vector_literal(vector: NDArray[np.float32]) -> str:
    """pgvector's text form `[0.1,…]`, exact for float32."""
    return "[" + ",".join(map(repr, vector.astype(np.float32).astype(float).tolist())) + "]"
