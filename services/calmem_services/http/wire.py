"""Values as JSON, and the JSON schemas that OpenAPI shows for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calmem.model import Fact, Item, Message, Recall, Recorded, Session, User

ID = {"type": "string", "minLength": 1, "maxLength": 256}
TIME = {"type": "string", "format": "date-time", "description": "ISO 8601 with an offset"}
TEXT = {"type": "string"}
PARTS = {"type": "array", "items": {"anyOf": [TEXT, {"type": "object"}]}, "description": "parts as chat APIs send them"}
MESSAGE: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["user_id", "session_id", "role", "content"],
    "properties": {
        "user_id": ID,
        "session_id": ID,
        "role": {"enum": ["user", "assistant", "tool", "system"]},
        "content": {"anyOf": [TEXT, PARTS, {"type": "null"}]},
        "message_id": {"anyOf": [ID, {"type": "null"}]},
        "name": {"anyOf": [{"type": "string", "maxLength": 200}, {"type": "null"}]},
        "created_at": {"anyOf": [TIME, {"type": "null"}]},
        "metadata": {"anyOf": [{"type": "object"}, {"type": "null"}]},
    },
}


def body(schema: Mapping[str, Any]) -> dict[str, Any]:
    """`openapi_extra` for a JSON body."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def answer(*names: str, description: str = "Answer") -> dict[str, Any]:
    """An OpenAPI response: an object that has these names."""
    schema = {"type": "object", "required": list(names), "properties": {name: {} for name in names}}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def recorded(value: Recorded) -> dict[str, Any]:
    shown: dict[str, Any] = {"message_id": value.message_id, "seq": value.seq, "created": value.created}
    return shown if value.stored else {**shown, "stored": False}


def item(value: Item) -> dict[str, Any]:
    return {
        "message_ids": [value.message_id],
        "session_id": value.session_id,
        "role": value.role,
        "name": value.name,
        "created_at": value.created_at.isoformat(),
        "text": value.text,
        "score": round(value.score, 6),
        "scores": {name: round(score, 6) for name, score in value.scores.items()},
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
