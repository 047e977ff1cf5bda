"""Routes of the retrieval service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.concurrency import run_in_threadpool

from calmem import metrics
from calmem.facts import Facts
from calmem.model import KeyScope
from calmem.models import ActiveModel, Models
from calmem.paging import MAX_PAGE, PAGE
from calmem.recall import Recaller
from calmem.settings import Settings
from calmem.storage.pool import Database
from calmem.users import Users
from calmem_services.http import health, schemas, wire
from calmem_services.http.access import Access
from calmem_services.http.admission import arrived
from calmem_services.http.app import build
from calmem_services.http.bodies import read_body
from calmem_services.http.problems import documented
from calmem_services.http.schemas import Key, KeyInPath, SessionId, SessionIdInPath, UserId

_BODY_BYTES = 4_194_304
_RECALL = schemas.closed(
    {
        "user_id": schemas.ID,
        "session_id": schemas.ID,
        "query": schemas.TEXT,
        "current_tokens": schemas.TOKENS,
        "context_window_capacity": {**schemas.TOKENS, "minimum": 1},
    },
    {
        "active_message_ids": {"type": "array", "items": schemas.ID},
        "active_from_seq": {"type": "integer", "minimum": 0, "maximum": 2**62},
        "since": schemas.TIME,
        "until": schemas.TIME,
        "k": schemas.K,
        "style": {"enum": ["list", "prose"]},
        "block_tokens": {"type": "integer", "minimum": 1, "maximum": 1_000_000},
        "arms": schemas.ARMS,
        "now": schemas.TIME,
    },
)
_SEARCH = schemas.closed(
    {"user_id": schemas.ID, "query": schemas.TEXT},
    {
        "k": schemas.K,
        "since": schemas.TIME,
        "until": schemas.TIME,
        "session_id": schemas.ID,
        "arms": schemas.ARMS,
        "now": schemas.TIME,
    },
)
_FACT = schemas.closed(
    {"user_id": schemas.ID, "value": {"type": "string", "minLength": 1, "description": "not blank, up to 16 KiB"}},
    {"category": schemas.LABEL, "expires_at": schemas.TIME, "source": schemas.LABEL},
)
_SCOPES = {
    "POST /v1/recall": KeyScope.RECALL,
    "POST /v1/search": KeyScope.RECALL,
    "GET /v1/sessions": KeyScope.RECALL,
    "GET /v1/sessions/{session_id}/messages": KeyScope.RECALL,
    "GET /v1/facts": KeyScope.FACTS,
    "GET /v1/facts/history": KeyScope.FACTS,
    "PUT /v1/sessions/{session_id}/facts/{key}": KeyScope.FACTS,
    "DELETE /v1/sessions/{session_id}/facts/{key}": KeyScope.FACTS,
}
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]


def create_app(settings: Settings) -> FastAPI:
    """The retrieval service over Postgres and the model; holds no state of its own."""
    database = Database(settings)
    models = Models(settings)
    recaller = Recaller(database, settings, models)
    facts = Facts(database)
    users = Users(database)

    model = ActiveModel(database, models)

    @contextmanager
    def resources() -> Iterator[None]:
        with database, closing(recaller), model.warming():
            yield

    app = build(
        "calmem retrieval",
        "Recall, search, facts, and reading back what was recorded.",
        resources=resources,
        access=Access(database, settings, _SCOPES),
        admission=settings,
    )
    app.include_router(health.router(database, settings, {"model": model.check}))

    @app.post(
        "/v1/recall",
        openapi_extra=schemas.body(_RECALL),
        responses={
            200: schemas.answer(schemas.RECALL),
            **documented(400, 403, 413, 415, 422, 503),
        },
    )
    async def recall(request: Request) -> dict[str, Any]:
        """The MOIM block for one turn."""
        fields = await read_body(request, _RECALL, limit_bytes=_BODY_BYTES)
        found = await run_in_threadpool(recaller.recall, began=arrived(request.scope), **fields)
        metrics.count_recall(found)
        return wire.recall(found)

    @app.post(
        "/v1/search",
        openapi_extra=schemas.body(_SEARCH),
        responses={
            200: schemas.answer(schemas.shown({"items": {"type": "array", "items": schemas.ITEM}})),
            **documented(400, 403, 413, 415, 422, 503),
        },
    )
    async def search(request: Request) -> dict[str, Any]:
        """Ranked items without a budget."""
        fields = await read_body(request, _SEARCH, limit_bytes=_BODY_BYTES)
        items = await run_in_threadpool(recaller.search, began=arrived(request.scope), **fields)
        return {"items": [wire.item(item) for item in items]}

    @app.put(
        "/v1/sessions/{session_id:id}/facts/{key:id}",
        openapi_extra=schemas.body(_FACT),
        responses={200: schemas.answer(schemas.FACT_STORED), **documented(400, 403, 404, 413, 415, 422, 503)},
    )
    async def remember(session_id: SessionIdInPath, key: KeyInPath, request: Request) -> dict[str, Any]:
        """Write a fact; the value it replaces is kept as history. `stored: false` with memory off."""
        fields = await read_body(request, _FACT, limit_bytes=262_144)
        fact = await run_in_threadpool(facts.remember, session_id=session_id, key=key, **fields)
        return {"stored": False} if fact is None else {"stored": True, **wire.fact(fact)}

    @app.get(
        "/v1/facts",
        responses={
            200: schemas.answer(schemas.shown({"facts": {"type": "array", "items": schemas.FACT}})),
            **documented(403, 422, 503),
        },
    )
    def list_facts(
        user_id: UserId, pattern: str | None = None, category: str | None = None, session_id: str | None = None
    ) -> dict[str, Any]:
        """Live facts, newest write first. `pattern` is a glob over the key: `*`, `?`, `[…]`."""
        found = facts.recall(user_id=user_id, pattern=pattern, category=category, session_id=session_id)
        return {"facts": [wire.fact(fact) for fact in found]}

    @app.get(
        "/v1/facts/history",
        responses={
            200: schemas.answer(schemas.shown({"versions": {"type": "array", "items": schemas.FACT_VERSION}})),
            **documented(403, 404, 422, 503),
        },
    )
    def fact_history(user_id: UserId, session_id: SessionId, key: Key) -> dict[str, Any]:
        """The values that later writes replaced, oldest first."""
        versions = facts.history(user_id=user_id, session_id=session_id, key=key)
        return {"versions": [wire.fact_version(version) for version in versions]}

    @app.delete(
        "/v1/sessions/{session_id:id}/facts/{key:id}",
        responses={200: schemas.answer(schemas.shown({"removed": {"const": 1}})), **documented(403, 404, 422, 503)},
    )
    def forget(session_id: SessionIdInPath, key: KeyInPath, user_id: UserId) -> dict[str, Any]:
        """Remove one fact and its history."""
        facts.forget(user_id=user_id, session_id=session_id, key=key)
        return {"removed": 1}

    @app.get(
        "/v1/sessions",
        responses={200: schemas.answer(schemas.page("sessions", schemas.SESSION)), **documented(404, 422, 503)},
    )
    def sessions(user_id: UserId, cursor: str | None = None, limit: Limit = PAGE) -> dict[str, Any]:
        """The user's sessions, oldest first, by pages."""
        page, following = users.sessions(user_id, cursor=cursor, limit=limit)
        return {"sessions": [wire.session(one) for one in page], "next_cursor": following}

    @app.get(
        "/v1/sessions/{session_id:id}/messages",
        responses={200: schemas.answer(schemas.page("messages", schemas.MESSAGE)), **documented(403, 404, 422, 503)},
    )
    def messages(
        session_id: SessionIdInPath, user_id: UserId, cursor: str | None = None, limit: Limit = PAGE
    ) -> dict[str, Any]:
        """A session's messages in the order of `seq`, by pages."""
        page, following = users.messages(user_id, session_id, cursor=cursor, limit=limit)
        return {"messages": [wire.message(one) for one in page], "next_cursor": following}

    return app
