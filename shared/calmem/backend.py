"""What `Memory` stands on: the same calls over Postgres and Redis (`direct`) and over the HTTP services (`remote`)."""

# Annotations are evaluated here: `remote` reads from the classes which arguments are known and which must be there.
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, Required, TypedDict, Unpack

from calmem.model import Fact, FactVersion, Item, Lane, Message, Recall, Receipt, Recorded, Session, Style, User
from calmem.paging import PAGE


class RecallRequest(TypedDict, total=False):
    """The arguments of `recall`; see `calmem.recall.Recaller.recall`."""

    user_id: Required[str]
    session_id: Required[str]
    query: Required[str]
    current_tokens: Required[int]
    context_window_capacity: Required[int]
    active_message_ids: Sequence[str] | None
    active_from_seq: int | None
    since: datetime | str | None
    until: datetime | str | None
    k: int | None
    style: Style
    block_tokens: int | None
    arms: Collection[str]
    now: datetime | None


class SearchRequest(TypedDict, total=False):
    """The arguments of `search`; see `calmem.recall.Recaller.search`."""

    user_id: Required[str]
    query: Required[str]
    k: int
    since: datetime | str | None
    until: datetime | str | None
    session_id: str | None
    arms: Collection[str]
    now: datetime | None


class FactRequest(TypedDict, total=False):
    """The arguments of `remember_fact`; see `calmem.facts.Facts.remember`."""

    user_id: Required[str]
    session_id: Required[str]
    key: Required[str]
    value: Required[str]
    category: str | None
    expires_at: datetime | str | None
    source: str | None


class FactFilter(TypedDict, total=False):
    """The arguments of `recall_facts`; see `calmem.facts.Facts.recall`."""

    user_id: Required[str]
    pattern: str | None
    category: str | None
    session_id: str | None


class Backend(Protocol):
    """Every implementation takes and returns the same values and raises the same classes of `calmem.errors`."""

    def close(self) -> None: ...

    def warm(self) -> None: ...

    def record(self, *, lane: Lane | str = Lane.LIVE, **fields: Any) -> Recorded: ...

    def record_many(self, batch: Sequence[Mapping[str, Any]], /, *, lane: Lane | str = Lane.LIVE) -> list[Recorded]: ...

    def recall(self, **request: Unpack[RecallRequest]) -> Recall: ...

    def search(self, **request: Unpack[SearchRequest]) -> list[Item]: ...

    def remember_fact(self, **fact: Unpack[FactRequest]) -> Fact | None: ...

    def recall_facts(self, **wanted: Unpack[FactFilter]) -> list[Fact]: ...

    def forget_fact(self, *, user_id: str, session_id: str, key: str) -> Receipt: ...

    def fact_history(self, *, user_id: str, session_id: str, key: str) -> list[FactVersion]: ...

    def get_user(self, user_id: str, /) -> User: ...

    def put_user(self, user_id: str, /, *, memory: str | None = None, time_zone: str | None = None) -> User: ...

    def delete_user(self, user_id: str, /) -> Receipt: ...

    def delete_session(self, user_id: str, session_id: str, /) -> Receipt: ...

    def delete_message(self, user_id: str, message_id: str, /) -> Receipt: ...

    def sessions(
        self, user_id: str, /, *, cursor: str | None = None, limit: int = PAGE
    ) -> tuple[list[Session], str | None]: ...

    def messages(
        self, user_id: str, session_id: str, /, *, cursor: str | None = None, limit: int = PAGE
    ) -> tuple[list[Message], str | None]: ...
