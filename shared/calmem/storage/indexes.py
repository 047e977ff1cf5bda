"""Rows of search_indexes: which model and chunking the index was made with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calmem.errors import PermanentError
from calmem.model import SearchIndex
from calmem.storage.pool import Connection

_ACTIVE = """
SELECT index_no, model, dimension, probe::text, chunk_chars, overlap_chars FROM search_indexes WHERE state = 'active'
"""


def active_index(conn: Connection) -> SearchIndex:
    """The index that recall reads. Raises PermanentError on a database that was never migrated."""
    row = conn.execute(_ACTIVE).fetchone()
    if row is None:
        raise PermanentError("the database has no index: run `calmem db migrate`")
    index_no, model, dimension, probe, chunk_chars, overlap_chars = row
    return SearchIndex(
        index_no=index_no,
        model=model,
        dimension=dimension,
        probe=None if probe is None else np.fromstring(probe.strip("[]"), dtype=np.float32, sep=","),
        chunk_chars=chunk_chars,
        overlap_chars=overlap_chars,
    )


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
