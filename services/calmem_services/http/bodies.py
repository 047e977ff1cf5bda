"""Request bodies: decoded leniently (lone surrogates reach the sanitiser), checked strictly for their fields."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from fastapi import Request

from calmem.errors import InvalidInput
from calmem_services.http.access import check_body
from calmem_services.http.problems import Problem
from calmem_services.http.schemas import Schema, whole


async def read_bytes(request: Request, *, limit_bytes: int) -> bytes | None:
    """The body; None, with the rest of it unread, when it is larger."""
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit_bytes:
            return None
        chunks.append(chunk)
    return b"".join(chunks)


async def read_body(request: Request, schema: Schema, *, limit_bytes: int) -> dict[str, Any]:
    """The JSON object of the body with no field missing and none unknown by the schema (`schemas.closed`); an optional
    field that is null is left out. The values are the use case's to check.

    Raises Problem (400 not JSON, 413 too large, 415 wrong type), InvalidInput naming the field, and Forbidden when
    the request's key is bound to another user.
    """
    kind = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must be application/json")
    raw = await read_bytes(request, limit_bytes=limit_bytes)
    if raw is None:
        raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {limit_bytes} bytes")
    try:
        body = json.loads(raw, parse_constant=_refuse)
    except (ValueError, RecursionError) as exc:
        raise Problem(HTTPStatus.BAD_REQUEST, "the body must be one JSON object in UTF-8") from exc
    if not isinstance(body, dict):
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "the body must be a JSON object")
    known, required = schema["properties"], schema["required"]
    for name in body:
        if name not in known:
            raise InvalidInput(name[:80], f"is not a field here; known: {', '.join(known)}")
    for name in required:
        if name not in body:
            raise InvalidInput(name, "is missing")
    check_body(request, body)
    return {name: whole(known[name], value) for name, value in body.items() if value is not None or name in required}


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")
