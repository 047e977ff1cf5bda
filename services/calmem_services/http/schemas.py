"""The JSON schemas that OpenAPI shows: what goes in, what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Path, Query

Schema = dict[str, Any]

# As text.clean_id: visible characters, not blank, not a wildcard alone.
_ID_PATTERN = r"^(?!\s*[*%]?\s*$)[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$"
ID: Schema = {"type": "string", "minLength": 1, "maxLength": 256, "pattern": _ID_PATTERN}
KEY: Schema = {"type": "string", "minLength": 1, "maxLength": 200, "pattern": r"[^\s\x00-\x1f\x7f-\x9f]"}
LABEL: Schema = {"type": "string", "maxLength": 200}
TEXT: Schema = {"type": "string"}
TIME: Schema = {"type": "string", "format": "date-time", "description": "ISO 8601 with an offset"}
COUNT: Schema = {"type": "integer", "minimum": 0}
TOKENS: Schema = {"type": "integer", "minimum": 0, "maximum": 2**53}
K: Schema = {"type": "integer", "minimum": 1, "maximum": 1_000}
ARMS: Schema = {
    "type": "array",
    "minItems": 1,
    "items": {"enum": ["dense", "words"]},
    "description": "one half of the search alone, for comparing",
}
ROLE: Schema = {"enum": ["user", "assistant", "tool", "system"]}
_PART: Schema = {
    "type": "object",
    "required": ["type"],
    "properties": {"type": {"type": "string", "minLength": 1}, "text": {"anyOf": [TEXT, {"type": "null"}]}},
    "examples": [{"type": "text", "text": "Hello"}],
}
_PARTS: Schema = {"type": "array", "items": {"anyOf": [TEXT, _PART]}, "description": "parts as chat APIs send them"}


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def closed(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """An object of a request: other fields are refused, and an optional one may be null, which is as if not given."""
    extra = {name: nullable(schema) for name, schema in (optional or {}).items()}
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": {**required, **extra},
    }


def shown(properties: Mapping[str, Schema], *, sometimes: Mapping[str, Schema] | None = None) -> Schema:
    """An object of an answer: `properties` are always there."""
    return {"type": "object", "required": list(properties), "properties": {**properties, **(sometimes or {})}}


def whole(schema: Schema, value: Any) -> Any:
    """JSON has one kind of number: 5.0 is as whole as 5 where a whole number is wanted."""
    kinds = [one.get("type") for one in (schema, *schema.get("anyOf", ()))]
    return int(value) if "integer" in kinds and isinstance(value, float) and value.is_integer() else value


MESSAGE_IN = closed(
    {"user_id": ID, "session_id": ID, "role": ROLE, "content": {"anyOf": [TEXT, _PARTS, {"type": "null"}]}},
    {"message_id": ID, "name": LABEL, "created_at": TIME, "metadata": {"type": "object"}},
)
RECORDED = shown(
    {"message_id": TEXT, "seq": nullable(COUNT), "created": {"type": "boolean"}},
    sometimes={"stored": {"const": False, "description": "only with memory off"}},
)
ITEM = shown(
    {
        "message_ids": {"type": "array", "items": TEXT},
        "session_id": TEXT,
        "seq": COUNT,
        "chunk": {"type": "integer", "description": "the chunk it was found by"},
        "start": COUNT,
        "end": {**COUNT, "description": "`text` is the message's code points from `start` to before this"},
        "role": ROLE,
        "name": nullable(TEXT),
        "created_at": TIME,
        "text": TEXT,
        "score": {"type": "number"},
        "scores": {"type": "object", "additionalProperties": {"type": "number"}},
        "reasons": {"type": "array", "items": TEXT},
    }
)
_FACT_SHOWN: dict[str, Schema] = {
    "id": {"type": "integer"},
    "session_id": TEXT,
    "category": TEXT,
    "key": TEXT,
    "value": TEXT,
    "created_at": TIME,
    "updated_at": TIME,
    "expires_at": nullable(TIME),
    "source": nullable(TEXT),
}
FACT = shown(_FACT_SHOWN)
FACT_STORED = shown({"stored": {"type": "boolean"}}, sometimes=_FACT_SHOWN)
FACT_VERSION = shown({"value": TEXT, "category": TEXT, "written_at": TIME, "superseded_at": TIME})
RECALL = shown(
    {
        "block": TEXT,
        "tokens": COUNT,
        "tier": {"enum": ["full", "reduced", "minimal", "facts_only", "off"]},
        "fill_ratio": {"type": "number", "minimum": 0},
        "items": {"type": "array", "items": ITEM},
        "facts": {"type": "array", "items": FACT},
        "degraded": {**nullable(TEXT), "description": "what was skipped, and why"},
        "timings_ms": {"type": "object", "additionalProperties": {"type": "number"}},
    }
)
USER = shown({"user_id": TEXT, "memory": {"enum": ["on", "off"]}, "time_zone": TEXT})
SESSION = shown(
    {"session_id": TEXT, "messages": COUNT, "first_at": nullable(TIME), "last_at": nullable(TIME)},
)
MESSAGE = shown(
    {
        "message_id": TEXT,
        "session_id": TEXT,
        "seq": COUNT,
        "role": ROLE,
        "name": nullable(TEXT),
        "content": TEXT,
        "created_at": TIME,
        "metadata": {"type": "object"},
        "indexed": {"type": "boolean"},
    }
)
REMOVED = shown({"removed": {"type": "object", "additionalProperties": COUNT, "description": "counts per kind"}})


def page(name: str, schema: Schema) -> Schema:
    cursor = {**nullable(TEXT), "description": "`cursor` of the next page; null on the last one"}
    return shown({name: {"type": "array", "items": schema}, "next_cursor": cursor})


def body(schema: Schema) -> dict[str, Any]:
    """`openapi_extra` for a JSON body."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def answer(schema: Schema, *, description: str = "Answer") -> dict[str, Any]:
    """An OpenAPI response."""
    return {"description": description, "content": {"application/json": {"schema": schema}}}


# Parameters: the schema is for the reader; the use cases check the value, the same way for every entrance.
UserId = Annotated[str, Query(description="whose it is", json_schema_extra=ID)]
SessionId = Annotated[str, Query(json_schema_extra=ID)]
Key = Annotated[str, Query(json_schema_extra=KEY)]
LaneAsked = Annotated[str, Query(json_schema_extra={"enum": ["live", "backfill"]})]
UserIdInPath = Annotated[str, Path(json_schema_extra=ID)]
SessionIdInPath = Annotated[str, Path(json_schema_extra=ID)]
MessageIdInPath = Annotated[str, Path(json_schema_extra=ID)]
KeyInPath = Annotated[str, Path(json_schema_extra=KEY)]
