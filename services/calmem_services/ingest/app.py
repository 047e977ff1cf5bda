"""Routes of the ingest service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from calmem.model import KeyScope, Lane
from calmem.queueing import WakeUps
from calmem.recording import Recorder
from calmem.settings import Settings
from calmem.storage.pool import Database
from calmem.users import Users
from calmem_services.http import health, schemas, wire
from calmem_services.http.access import Access
from calmem_services.http.app import build
from calmem_services.http.bodies import read_body
from calmem_services.http.problems import documented
from calmem_services.http.schemas import LaneAsked, MessageIdInPath, SessionIdInPath, UserId, UserIdInPath

# JSON escapes of a text may take six bytes for one.
_JSON_GROWTH = 6
_BATCH_BYTES = 67_108_864
_USER_BODY = schemas.closed(
    {}, {"memory": {"enum": ["on", "off"]}, "time_zone": {"type": "string", "examples": ["Asia/Shanghai"]}}
)
_SCOPES = {
    "POST /v1/messages": KeyScope.RECORD,
    "POST /v1/messages:batch": KeyScope.RECORD,
    "GET /v1/users/{user_id}": KeyScope.RECORD,
    # What switches a user's memory off or removes something for good is not for the key that every turn carries.
    "PUT /v1/users/{user_id}": KeyScope.ADMIN,
    "DELETE /v1/users/{user_id}": KeyScope.ADMIN,
    "DELETE /v1/sessions/{session_id}": KeyScope.ADMIN,
    "DELETE /v1/messages/{message_id}": KeyScope.ADMIN,
}


def create_app(settings: Settings) -> FastAPI:
    """The ingest service over Postgres and Redis."""
    database = Database(settings)
    recorder = Recorder(database, WakeUps(settings.redis_url), settings)
    users = Users(database)

    @contextmanager
    def resources() -> Iterator[None]:
        with database:
            yield

    app = build(
        "calmem ingest",
        "Records messages; users and what is deleted of them.",
        resources=resources,
        access=Access(database, settings, _SCOPES),
        admission=settings,
    )
    app.include_router(health.router(database, settings, {}))

    @app.post(
        "/v1/messages",
        status_code=201,
        openapi_extra=schemas.body(schemas.MESSAGE_IN),
        responses={
            201: schemas.answer(schemas.RECORDED, description="Stored"),
            200: schemas.answer(schemas.RECORDED, description="Stored before, or memory is off (`stored: false`)"),
            **documented(400, 403, 409, 413, 415, 422, 503),
        },
        response_class=JSONResponse,
    )
    async def record(request: Request, lane: LaneAsked = Lane.LIVE) -> JSONResponse:
        """Store one message. Idempotent by `message_id`. `lane=backfill`: indexed behind live messages."""
        fields = await read_body(
            request, schemas.MESSAGE_IN, limit_bytes=_JSON_GROWTH * settings.message_bytes + 1_048_576
        )
        stored = await run_in_threadpool(recorder.record, lane=lane, **fields)
        return JSONResponse(wire.recorded(stored), status_code=201 if stored.created else 200)

    batch = {"type": "array", "minItems": 1, "maxItems": settings.batch_messages, "items": schemas.MESSAGE_IN}
    batch_body = schemas.closed({"messages": batch})

    @app.post(
        "/v1/messages:batch",
        openapi_extra=schemas.body(batch_body),
        responses={
            200: schemas.answer(schemas.shown({"results": {"type": "array", "items": schemas.RECORDED}})),
            **documented(400, 403, 409, 413, 415, 422, 503),
        },
    )
    async def record_many(request: Request, lane: LaneAsked = Lane.LIVE) -> dict[str, Any]:
        """Store up to 1,000 messages, all or none."""
        fields = await read_body(request, batch_body, limit_bytes=_BATCH_BYTES)
        stored = await run_in_threadpool(recorder.record_many, fields["messages"], lane=lane)
        return {"results": [wire.recorded(one) for one in stored]}

    @app.get(
        "/v1/users/{user_id:id}",
        responses={200: schemas.answer(schemas.USER), **documented(404, 422, 503)},
    )
    def get_user(user_id: UserIdInPath) -> dict[str, Any]:
        """The user's switch and time zone."""
        return wire.user(users.get(user_id))

    @app.put(
        "/v1/users/{user_id:id}",
        openapi_extra=schemas.body(_USER_BODY),
        responses={200: schemas.answer(schemas.USER), **documented(400, 404, 413, 415, 422, 503)},
    )
    async def put_user(user_id: UserIdInPath, request: Request) -> dict[str, Any]:
        """Create the user or change what is given."""
        fields = await read_body(request, _USER_BODY, limit_bytes=65_536)
        return wire.user(await run_in_threadpool(users.put, user_id, **fields))

    @app.delete("/v1/users/{user_id:id}", responses={200: schemas.answer(schemas.REMOVED), **documented(404, 422, 503)})
    def delete_user(user_id: UserIdInPath) -> dict[str, Any]:
        """Remove everything of the user; counts per kind."""
        return {"removed": dict(users.delete_user(user_id).removed)}

    @app.delete(
        "/v1/sessions/{session_id:id}",
        responses={200: schemas.answer(schemas.REMOVED), **documented(403, 404, 422, 503)},
    )
    def delete_session(session_id: SessionIdInPath, user_id: UserId) -> dict[str, Any]:
        """Remove a session with its messages and facts; counts per kind."""
        return {"removed": dict(users.delete_session(user_id, session_id).removed)}

    @app.delete(
        "/v1/messages/{message_id:id}", responses={200: schemas.answer(schemas.REMOVED), **documented(404, 422, 503)}
    )
    def delete_message(message_id: MessageIdInPath, user_id: UserId) -> dict[str, Any]:
        """Remove one message and everything derived from it; counts per kind."""
        return {"removed": dict(users.delete_message(user_id, message_id).removed)}

    return app
