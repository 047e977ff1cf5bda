"""Request bodies: decoded leniently (lone surrogates reach the sanitiser), checked strictly for their fields."""

from __future__ import annotations

import json
from collections.abc import Collection
from http import HTTPStatus
from typing import Any

from fastapi import Request

from calmem.errors import InvalidInput
from calmem_services.http.problems import Problem


async def read_object(
    request: Request, *, limit_bytes: int, required: Collection[str], optional: Collection[str] = ()
) -> dict[str, Any]:
    """The JSON object of the body with no field missing and none unknown.

    Raises Problem (400 not JSON, 413 too large, 415 wrong type) and InvalidInput naming the field.
    """
    kind = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must be application/json")
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit_bytes:
            raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {limit_bytes} bytes")
        chunks.append(chunk)
    try:
        body = json.loads(b"".join(chunks), parse_constant=_refuse)
    except (ValueError, RecursionError) as exc:
        raise Problem(HTTPStatus.BAD_REQUEST, "the body must be one JSON object in UTF-8") from exc
    if not isinstance(body, dict):
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "the body must be a JSON object")
    for name in body:
        if name not in required and name not in optional:
            shown = name.encode("utf-8", "replace").decode()[:80]
            raise InvalidInput(shown, f"is not a field here; known: {', '.join([*required, *optional])}")
    for name in required:
        if name not in body:
            raise InvalidInput(name, "is missing")
    return body


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")
