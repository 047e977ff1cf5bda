"""What the HTTP services answer, read back into calmem's values and errors. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Any, TypeVar

from calmem.errors import (
    CalmemError,
    Conflict,
    Forbidden,
    InvalidInput,
    ModelUnavailable,
    NotFound,
    Overtaken,
    PermanentError,
    RateLimited,
    TransientError,
    Unauthorized,
)
from calmem.model import Fact, FactVersion, Item, Message, Recall, Receipt, Recorded, Session, Tier, User

Json = Mapping[str, Any]
T = TypeVar("T")

_PLAIN: dict[str, type[CalmemError]] = {
    kind.__name__: kind
    for kind in (
        Conflict,
        Forbidden,
        ModelUnavailable,
        NotFound,
        Overtaken,
        PermanentError,
        TransientError,
        Unauthorized,
    )
}
# What stands between client and service says this while the service is away.
_TRY_AGAIN = (
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)


def recorded(answer: Json) -> Recorded:
    return Recorded(
        message_id=answer["message_id"],
        seq=answer["seq"],
        created=answer["created"],
        stored=answer.get("stored", True),
    )


def results(answer: Json) -> list[Recorded]:
    return [recorded(one) for one in answer["results"]]


def item(answer: Json) -> Item:
    return Item(
        chunk_no=answer["chunk"],
        message_id=answer["message_ids"][0],
        session_id=answer["session_id"],
        seq=answer["seq"],
        role=answer["role"],
        name=answer["name"],
        created_at=_time(answer["created_at"]),
        start=answer["start"],
        end=answer["end"],
        text=answer["text"],
        score=answer["score"],
        scores=answer["scores"],
        reasons=tuple(answer["reasons"]),
    )


def items(answer: Json) -> list[Item]:
    return [item(one) for one in answer["items"]]


def recall(answer: Json) -> Recall:
    return Recall(
        block=answer["block"],
        tokens=answer["tokens"],
        tier=Tier(answer["tier"]),
        fill_ratio=answer["fill_ratio"],
        items=items(answer),
        facts=facts(answer),
        degraded=answer["degraded"],
        timings_ms=answer["timings_ms"],
    )


def fact(answer: Json) -> Fact:
    return Fact(
        fact_id=answer["id"],
        session_id=answer["session_id"],
        category=answer["category"],
        key=answer["key"],
        value=answer["value"],
        created_at=_time(answer["created_at"]),
        updated_at=_time(answer["updated_at"]),
        expires_at=_time_or_none(answer["expires_at"]),
        source=answer["source"],
    )


def stored_fact(answer: Json) -> Fact | None:
    return fact(answer) if answer["stored"] else None


def facts(answer: Json) -> list[Fact]:
    return [fact(one) for one in answer["facts"]]


def fact_versions(answer: Json) -> list[FactVersion]:
    return [
        FactVersion(
            value=one["value"],
            category=one["category"],
            written_at=_time(one["written_at"]),
            superseded_at=_time(one["superseded_at"]),
        )
        for one in answer["versions"]
    ]


def forgotten(answer: Json) -> Receipt:
    return Receipt(removed={"facts": answer["removed"]})


def receipt(answer: Json) -> Receipt:
    return Receipt(removed=dict(answer["removed"]))


def user(answer: Json) -> User:
    return User(user_id=answer["user_id"], memory_on=answer["memory"] == "on", time_zone=answer["time_zone"])


def sessions(answer: Json) -> tuple[list[Session], str | None]:
    return _page(answer, "sessions", _session)


def messages(answer: Json) -> tuple[list[Message], str | None]:
    return _page(answer, "messages", _message)


def problem(status: int, document: object, *, retry_after: str | None, service: str) -> CalmemError:
    """The error behind an answer that is none: its own class with its own message where calmem named it.

    Whatever else answers (a proxy, another server at this address) is told apart by its status.
    """
    named = document if isinstance(document, dict) else {}
    kind, detail, field = named.get("error"), named.get("detail"), named.get("field")
    if isinstance(detail, str):
        if kind == InvalidInput.__name__ and isinstance(field, str):
            return InvalidInput(field, detail.removeprefix(f"{field}: "))
        if kind == RateLimited.__name__:
            return RateLimited(detail, retry_after_seconds=_seconds(retry_after))
        if kind in _PLAIN:
            return _PLAIN[kind](detail)
        if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return InvalidInput("body", detail)
    said = f": {detail}" if isinstance(detail, str) else ""
    if status in _TRY_AGAIN:
        return TransientError(f"{service} cannot be reached: status {status}{said}")
    return PermanentError(f"{service} refused the request: status {status}{said}")


def _page(answer: Json, name: str, read: Callable[[Json], T]) -> tuple[list[T], str | None]:
    return [read(one) for one in answer[name]], answer["next_cursor"]


def _session(answer: Json) -> Session:
    return Session(
        session_id=answer["session_id"],
        messages=answer["messages"],
        first_at=_time_or_none(answer["first_at"]),
        last_at=_time_or_none(answer["last_at"]),
    )


def _message(answer: Json) -> Message:
    return Message(
        message_id=answer["message_id"],
        session_id=answer["session_id"],
        seq=answer["seq"],
        role=answer["role"],
        name=answer["name"],
        content=answer["content"],
        created_at=_time(answer["created_at"]),
        metadata=answer["metadata"],
        indexed=answer["indexed"],
    )


def _time(value: str) -> datetime:
    return datetime.fromisoformat(value)


def _time_or_none(value: str | None) -> datetime | None:
    return None if value is None else _time(value)


def _seconds(retry_after: str | None) -> int:
    return int(retry_after) if retry_after is not None and retry_after.isdecimal() else 1
