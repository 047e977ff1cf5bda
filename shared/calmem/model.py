"""The values that pass between calmem's parts. All frozen, all keyword-only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Role = Literal["user", "assistant", "tool", "system"]
ROLES: tuple[Role, ...] = ("user", "assistant", "tool", "system")
Style = Literal["list", "prose"]
STYLES: tuple[Style, ...] = ("list", "prose")


class Tier(StrEnum):
    """How much may be injected. `off`: the user's memory is switched off."""

    FULL = "full"
    REDUCED = "reduced"
    MINIMAL = "minimal"
    FACTS_ONLY = "facts_only"
    OFF = "off"


class Lane(StrEnum):
    """Which queue a message is indexed through: live goes before backfill, and that before a reindex."""

    LIVE = "live"
    BACKFILL = "backfill"
    REINDEX = "reindex"


# What waits in these, recall cannot find by meaning yet.
RECALL_LANES = (Lane.LIVE, Lane.BACKFILL)


class IndexState(StrEnum):
    """What an index is for; migration 0011 draws the ways between the states."""

    BUILDING = "building"
    PAUSED = "paused"
    ACTIVE = "active"
    KEPT = "kept"
    RETIRED = "retired"


@dataclass(frozen=True, kw_only=True)
class NewMessage:
    """One checked and sanitised turn on its way into the database."""

    user_id: str
    session_id: str
    message_id: str
    role: Role
    content: str
    name: str | None
    created_at: datetime  # aware, UTC
    metadata: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Answer of `record`. With memory off `stored` is false, `seq` is None and no row exists."""

    message_id: str
    seq: int | None
    created: bool
    stored: bool = True


@dataclass(frozen=True, kw_only=True)
class ImportCheckpoint:
    """How far an import got: `units` lines or elements, the first `byte_offset` bytes, of which `digest` is the digest.

    `bad`: how many of the units or their messages could not be recorded.
    """

    byte_offset: int
    units: int
    digest: bytes
    bad: int


@dataclass(frozen=True, kw_only=True)
class Message:
    """One stored turn as its user may read it."""

    message_id: str
    session_id: str
    seq: int
    role: Role
    name: str | None
    content: str
    created_at: datetime
    metadata: Mapping[str, Any]
    indexed: bool


class MessageState(StrEnum):
    """Where a message stands in the active index. `empty`: it has no text of its own to index."""

    INDEXED = "indexed"
    WAITING = "waiting"
    FAILED = "failed"
    EMPTY = "empty"


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A message as an operator sees it."""

    message: Message
    state: MessageState


@dataclass(frozen=True, kw_only=True)
class Session:
    session_id: str
    messages: int
    first_at: datetime | None
    last_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class User:
    """A user's switch and time zone (an IANA name)."""

    user_id: str
    memory_on: bool
    time_zone: str


@dataclass(frozen=True, kw_only=True)
class StoredUser(User):
    """A user as the database has them. `key` keys the hashes of their word postings; it never leaves the process."""

    user_no: int
    key: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class UserSummary:
    """A user in a list, with how much there is of them."""

    user_id: str
    memory_on: bool
    sessions: int
    messages: int
    created_at: datetime


class KeyScope(StrEnum):
    """What an API key opens; none includes another."""

    RECORD = "record"
    RECALL = "recall"
    FACTS = "facts"
    ADMIN = "admin"


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """A key as it is stored. `user_id`: the only user it speaks for, None: any."""

    prefix: str
    hash: bytes = field(repr=False)
    name: str
    scopes: frozenset[KeyScope]
    user_id: str | None
    created_at: datetime
    revoked_at: datetime | None
    last_used_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Span:
    """Half-open range of Unicode code points `[start, end)` in a message's content."""

    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Item:
    """A piece of one message, loaded and scored, that may go into the block."""

    chunk_no: int
    message_id: str
    session_id: str
    seq: int
    role: Role
    name: str | None
    created_at: datetime
    start: int
    end: int
    text: str  # content[start:end]
    score: float = 0.0
    scores: Mapping[str, float] = field(default_factory=dict)  # cosine, bm25, beside …
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Fact:
    fact_id: int
    session_id: str
    category: str
    key: str
    value: str
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    source: str | None


@dataclass(frozen=True, kw_only=True)
class FactVersion:
    """A value of a fact that a later write replaced; forgetting a fact removes these too."""

    value: str
    category: str
    written_at: datetime
    superseded_at: datetime


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits of one tier, in tokens as the block counts them (see `calmem.budget.tokens`)."""

    tier: Tier
    episodes: int
    block: int


@dataclass(frozen=True, kw_only=True)
class Block:
    """A rendered MOIM block, `text` == "" when there is nothing to inject (tier off)."""

    text: str
    tokens: int
    facts_left_out: int


@dataclass(frozen=True, kw_only=True)
class Recall:
    """Answer of `recall`. `items` are ranked, best first; the block shows them oldest first."""

    block: str
    tokens: int
    tier: Tier
    fill_ratio: float
    items: Sequence[Item]
    facts: Sequence[Fact]
    degraded: str | None
    timings_ms: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class SearchIndex:
    """One generation of the index: one model, one way of chunking."""

    index_no: int
    model: str
    dimension: int | None  # None until the first worker has loaded the model
    probe: NDArray[np.float32] | None  # (dimension,), the vector of a fixed sentence; None like dimension
    chunk_chars: int
    overlap_chars: int
    model_path: str = ""  # the directory the model was given by; "": found by its name
    min_cosine: float | None = None  # of a hit found by meaning alone; None: the setting
    state: IndexState = IndexState.ACTIVE


@dataclass(frozen=True, kw_only=True)
class Reindex:
    """How far the building, or the removal, of an index has come.

    `done` of `messages` have been looked at and, where they have text, indexed or set aside (`failed`); what was
    recorded since the start is not counted. `per_second` and `seconds_left` are None as long as nothing can be said.
    """

    index: SearchIndex
    messages: int
    done: int
    failed: int
    complete: bool  # recall would find by it whatever it finds by the active one
    switches: bool  # and goes over to it by itself
    per_second: float | None
    seconds_left: float | None
    problem: str | None  # what keeps a worker from going on


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A message leased to one worker. `size`: bytes of its content, which is loaded when its turn comes."""

    user_no: int
    message_no: int
    session_no: int
    seq: int
    created_at: datetime
    name: str | None
    user_key: bytes = field(repr=False)
    attempts: int
    size: int


@dataclass(frozen=True, kw_only=True)
class NewChunk:
    """A chunk ready to be written; `vector` is None until it has been embedded.

    One that is already stored is named by `chunk_no` and needs no tokens.
    """

    span: Span
    tokens: Sequence[int] = ()
    chunk_no: int | None = None
    vector: NDArray[np.float32] | None = None  # (dimension,)


@dataclass(frozen=True, kw_only=True)
class Unindexed:
    """A claimed message's text, and the (chunk_no, span) that `record` wrote for it, by position.

    `known`: vectors that another index of the same model has of the message's text, by span.
    """

    content: str
    chunks: Sequence[tuple[int, Span]]
    known: Mapping[Span, NDArray[np.float32]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FailedMessage:
    index_no: int
    message_id: str
    user_id: str
    session_id: str
    attempts: int
    error: str
    failed_at: datetime


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """What recall waits for, in the lanes live and backfill. `age_by_lane` has the age in seconds of the oldest pending
    message, 0.0 if none; `failed` counts what was set aside in whichever index.
    """

    pending: int
    failed: int
    age_by_lane: Mapping[Lane, float]

    @property
    def oldest_seconds(self) -> float:
        return max(self.age_by_lane.values())

    @property
    def live_seconds(self) -> float:
        """The age that health goes by: an import may well wait for hours."""
        return self.age_by_lane[Lane.LIVE]


@dataclass(frozen=True, kw_only=True)
class QueueState(Backlog):
    """All that is waiting, counted; what waits in an index beside the active one is `pending_by_lane` of the lane reindex."""

    pending_by_lane: Mapping[Lane, int]
    leased: int


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """Counts of what a deletion removed, per kind (`messages`, `chunks`, `facts`, `sessions`, …)."""

    removed: Mapping[str, int]
