"""Routes of the retrieval service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.concurrency import run_in_threadpool

from calmem import metrics
from calmem.facts import Facts
from calmem.model import Recall
from calmem.models import Models
from calmem.recall import Recaller
from calmem.settings import Settings
from calmem.storage import indexes
from calmem.storage.pool import Database
from calmem.users import MAX_PAGE, PAGE, Users
from calmem_services.http import health, wire
from calmem_services.http.app import build
from calmem_services.http.bodies import read_object
from calmem_services.http.problems import documented

_BODY_BYTES = 4_194_304
_WHOLE = {"type": "integer", "minimum": 0}
_TIME_OR_NULL = {"anyOf": [wire.TIME, {"type": "null"}]}
_K = {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 1000}, {"type": "null"}]}
_RECALL: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["user_id", "session_id", "query", "current_tokens", "context_window_capacity"],
    "properties": {
        "user_id": wire.ID,
        "session_id": wire.ID,
        "query": wire.TEXT,
        "current_tokens": _WHOLE,
        "context_window_capacity": {"type": "integer", "minimum": 1},
        "active_message_ids": {"anyOf": [{"type": "array", "items": wire.ID}, {"type": "null"}]},
        "active_from_seq": {"anyOf": [_WHOLE, {"type": "null"}]},
        "since": _TIME_OR_NULL,
        "until": _TIME_OR_NULL,
        "k": _K,
        "style": {"enum": ["list", "prose"]},
    },
}
_SEARCH: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["user_id", "query"],
    "properties": {
        "user_id": wire.ID,
        "query": wire.TEXT,
        "k": {"type": "integer", "minimum": 1, "maximum": 1000},
        "since": _TIME_OR_NULL,
        "until": _TIME_OR_NULL,
        "session_id": {"anyOf": [wire.ID, {"type": "null"}]},
    },
}
_FACT: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["user_id", "value"],
    "properties": {
        "user_id": wire.ID,
        "value": {"type": "string", "minLength": 1},
        "category": {"anyOf": [{"type": "string", "maxLength": 200}, {"type": "null"}]},
        "expires_at": _TIME_OR_NULL,
    },
}
UserId = Annotated[str, Query(description="whose it is")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]


def create_app(settings: Settings) -> FastAPI:
    """The retrieval service over Postgres and the model; holds no state of its own."""
    database = Database(settings)
    models = Models(settings)
    recaller = Recaller(database, settings, models)
    facts = Facts(database)
    users = Users(database)

    def model_check() -> None:
        with database.connection(1.0) as conn:
            index = indexes.active_index(conn)
        models.for_index(index)

    @contextmanager
    def resources() -> Iterator[None]:
        with database:
            yield
        recaller.close()

    app = build("calmem retrieval", "Recall, search, facts, and reading back what was recorded.", resources=resources)
    app.include_router(health.router(database, settings, {"model": model_check}))

    @app.post(
        "/v1/recall",
        openapi_extra=wire.body(_RECALL),
        responses={
            200: wire.answer("block", "tokens", "tier", "fill_ratio", "items", "facts", "degraded", "timings_ms"),
            **documented(400, 403, 413, 415, 422, 503),
        },
    )
    async def recall(request: Request) -> dict[str, Any]:
        """The MOIM block for one turn."""
        required = _RECALL["required"]
        optional = [name for name in _RECALL["properties"] if name not in required]
        fields = await read_object(request, limit_bytes=_BODY_BYTES, required=required, optional=optional)
        found = await run_in_threadpool(recaller.recall, **fields)
        _count(found)
        return wire.recall(found)

    @app.post(
        "/v1/search",
        openapi_extra=wire.body(_SEARCH),
        responses={200: wire.answer("items"), **documented(400, 403, 413, 415, 422, 503)},
    )
    async def search(request: Request) -> dict[str, Any]:
        """Ranked items without a budget."""
        fields = await read_object(
            request,
            limit_bytes=_BODY_BYTES,
            required=("user_id", "query"),
            optional=("k", "since", "until", "session_id"),
        )
        items = await run_in_threadpool(recaller.search, **fields)
        return {"items": [wire.item(item) for item in items]}

    @app.put(
        "/v1/sessions/{session_id}/facts/{key}",
        openapi_extra=wire.body(_FACT),
        responses={200: wire.answer("stored"), **documented(400, 403, 413, 415, 422, 503)},
    )
    async def remember(session_id: str, key: str, request: Request) -> dict[str, Any]:
        """Write a fact; the value it replaces is kept as history. `stored: false` with memory off."""
        fields = await read_object(
            request, limit_bytes=262_144, required=("user_id", "value"), optional=("category", "expires_at")
        )
        fact = await run_in_threadpool(facts.remember, session_id=session_id, key=key, **fields)
        return {"stored": False} if fact is None else {"stored": True, **wire.fact(fact)}

    @app.get("/v1/facts", responses={200: wire.answer("facts"), **documented(403, 422, 503)})
    def list_facts(
        user_id: UserId, pattern: str | None = None, category: str | None = None, session_id: str | None = None
    ) -> dict[str, Any]:
        """Live facts, newest write first. `pattern` is a glob over the key: `*`, `?`, `[…]`."""
        found = facts.recall(user_id=user_id, pattern=pattern, category=category, session_id=session_id)
        return {"facts": [wire.fact(fact) for fact in found]}

    @app.delete(
        "/v1/sessions/{session_id}/facts/{key}",
        responses={200: wire.answer("removed"), **documented(403, 404, 422, 503)},
    )
    def forget(session_id: str, key: str, user_id: UserId) -> dict[str, Any]:
        """Remove one fact and its history."""
        facts.forget(user_id=user_id, session_id=session_id, key=key)
        return {"removed": 1}

    @app.get("/v1/sessions", responses={200: wire.answer("sessions", "next_cursor"), **documented(404, 422, 503)})
    def sessions(user_id: UserId, cursor: str | None = None, limit: Limit = PAGE) -> dict[str, Any]:
        """The user's sessions, oldest first, by pages."""
        page, following = users.sessions(user_id, cursor=cursor, limit=limit)
        return {"sessions": [wire.session(one) for one in page], "next_cursor": following}

    @app.get(
        "/v1/sessions/{session_id}/messages",
        responses={200: wire.answer("messages", "next_cursor"), **documented(403, 404, 422, 503)},
    )
    def messages(session_id: str, user_id: UserId, cursor: str | None = None, limit: Limit = PAGE) -> dict[str, Any]:
        """A session's messages in the order of `seq`, by pages."""
        page, following = users.messages(user_id, session_id, cursor=cursor, limit=limit)
        return {"messages": [wire.message(one) for one in page], "next_cursor": following}

    return app


def _count(found: Recall) -> None:
    metrics.RECALL_TIERS.labels(found.tier.value).inc()
    if found.degraded:
        metrics.RECALL_DEGRADED.inc()
    for stage, milliseconds in found.timings_ms.items():
        metrics.RECALL_SECONDS.labels(stage).observe(milliseconds / 1_000)
