"""Values as JSON; their schemas are in `schemas`."""

from __future__ import annotations

from typing import Any

from calmem.fates import Explanation
from calmem.model import Fact, FactVersion, Item, Message, Recall, Recorded, Session, User


def recorded(value: Recorded) -> dict[str, Any]:
    shown: dict[str, Any] = {"message_id": value.message_id, "seq": value.seq, "created": value.created}
    return shown if value.stored else {**shown, "stored": False}


def item(value: Item) -> dict[str, Any]:
    return {
        "message_ids": [value.message_id],
        "session_id": value.session_id,
        "seq": value.seq,
        "chunk": value.chunk_no,
        "start": value.start,
        "end": value.end,
        "role": value.role,
        "name": value.name,
        "created_at": value.created_at.isoformat(),
        "text": value.text,
        "score": value.score,
        "scores": dict(value.scores),
        "reasons": list(value.reasons),
    }


def fact(value: Fact) -> dict[str, Any]:
    return {
        "id": value.fact_id,
        "session_id": value.session_id,
        "category": value.category,
        "key": value.key,
        "value": value.value,
        "created_at": value.created_at.isoformat(),
        "updated_at": value.updated_at.isoformat(),
        "expires_at": None if value.expires_at is None else value.expires_at.isoformat(),
        "source": value.source,
    }


def fact_version(value: FactVersion) -> dict[str, Any]:
    return {
        "value": value.value,
        "category": value.category,
        "written_at": value.written_at.isoformat(),
        "superseded_at": value.superseded_at.isoformat(),
    }


def recall(value: Recall) -> dict[str, Any]:
    return {
        "block": value.block,
        "tokens": value.tokens,
        "tier": value.tier.value,
        "fill_ratio": value.fill_ratio,
        "items": [item(one) for one in value.items],
        "facts": [fact(one) for one in value.facts],
        "degraded": value.degraded,
        "timings_ms": dict(value.timings_ms),
    }


def explanation(value: Explanation) -> dict[str, Any]:
    """A recall with its candidates; `fates` says by tier what becomes of each."""
    return {
        **recall(value.recall),
        "limits": {"episodes": value.limits.episodes, "block": value.limits.block},
        "hidden": value.hidden,
        "candidates": [
            {**item(one.item), "fates": {tier.value: fate.value for tier, fate in one.fates.items()}}
            for one in value.candidates
        ],
    }


def user(value: User) -> dict[str, Any]:
    return {"user_id": value.user_id, "memory": "on" if value.memory_on else "off", "time_zone": value.time_zone}


def session(value: Session) -> dict[str, Any]:
    return {
        "session_id": value.session_id,
        "messages": value.messages,
        "first_at": None if value.first_at is None else value.first_at.isoformat(),
        "last_at": None if value.last_at is None else value.last_at.isoformat(),
    }


def message(value: Message) -> dict[str, Any]:
    return {
        "message_id": value.message_id,
        "session_id": value.session_id,
        "seq": value.seq,
        "role": value.role,
        "name": value.name,
        "content": value.content,
        "created_at": value.created_at.isoformat(),
        "metadata": dict(value.metadata),
        "indexed": value.indexed,
    }
