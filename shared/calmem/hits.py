"""What the two arms of the search find, before anything is loaded. All frozen, all keyword-only but `Place`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple


@dataclass(frozen=True, kw_only=True)
class Window:
    """A stretch of time, [since, until); None is open."""

    since: datetime | None
    until: datetime | None


@dataclass(frozen=True, kw_only=True)
class DenseHit:
    chunk_no: int
    cosine: float


@dataclass(frozen=True, kw_only=True)
class DenseHits:
    """Best first; `complete`: every vector in scope is among them; `understood`: the model knows the query's words."""

    hits: Sequence[DenseHit] = ()
    complete: bool = True
    understood: bool = True


class Place(NamedTuple):
    """Where a message stands: its session and its position there."""

    session_no: int
    seq: int


@dataclass(frozen=True, kw_only=True)
class QueryToken:
    """A word of a query as the user's postings have it: its keyed hash, and its weight in BM25."""

    token: int
    weight: float
    identifier: bool = False


@dataclass(frozen=True, kw_only=True)
class WordHit:
    """`bm25` > 0; `covered`: the share of the query's words the chunk has, each by its idf, 0 to 1.

    `identifier`: it has one that the query names, such as an order number.
    """

    chunk_no: int
    place: Place
    sent: datetime
    bm25: float
    covered: float
    identifier: bool = False


@dataclass(frozen=True, kw_only=True)
class WordHits:
    """Best first; `known`: the share of the query's words, each by its idf, that the user's chunks have at all."""

    hits: Sequence[WordHit] = ()
    known: float = 0.0
