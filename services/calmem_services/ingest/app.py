"""Routes of the ingest service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from calmem.queueing import WakeUps
from calmem.recording import Recorder
from calmem.settings import Settings
from calmem.storage.pool import Database
from calmem.users import Users
from calmem_services.http import health, wire
from calmem_services.http.app import build
from calmem_services.http.bodies import read_object
from calmem_services.http.problems import documented

# JSON escapes of a text may take six bytes for one.
_JSON_GROWTH = 6
_BATCH_BYTES = 67_108_864
_MESSAGE_REQUIRED = ("user_id", "session_id", "role", "content")
_MESSAGE_OPTIONAL = ("message_id", "name", "created_at", "metadata")
_USER_BODY: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"memory": {"enum": ["on", "off"]}, "time_zone": {"type": "string", "examples": ["Asia/Shanghai"]}},
}
UserId = Annotated[str, Query(description="whose it is")]


def create_app(settings: Settings) -> FastAPI:
    """The ingest service over Postgres and Redis."""
    database = Database(settings)
    recorder = Recorder(database, WakeUps(settings.redis_url), settings)
    users = Users(database)

    @contextmanager
    def resources() -> Iterator[None]:
        with database:
            yield

    app = build("calmem ingest", "Records messages; users and what is deleted of them.", resources=resources)
    app.include_router(health.router(database, settings, {}))

    @app.post(
        "/v1/messages",
        status_code=201,
        openapi_extra=wire.body(wire.MESSAGE),
        responses={
            201: wire.answer("message_id", "seq", "created", description="Stored"),
            200: wire.answer(
                "message_id", "seq", "created", description="Stored before, or memory is off (`stored: false`)"
            ),
            **documented(400, 403, 409, 413, 415, 422, 503),
        },
        response_class=JSONResponse,
    )
    async def record(request: Request) -> JSONResponse:
        """Store one message. Idempotent by `message_id`."""
        fields = await read_object(
            request,
            limit_bytes=_JSON_GROWTH * settings.message_bytes + 1_048_576,
            required=_MESSAGE_REQUIRED,
            optional=_MESSAGE_OPTIONAL,
        )
        stored = await run_in_threadpool(recorder.record, **fields)
        return JSONResponse(wire.recorded(stored), status_code=201 if stored.created else 200)

    batch = {
        "type": "object",
        "additionalProperties": False,
        "required": ["messages"],
        "properties": {
            "messages": {"type": "array", "minItems": 1, "maxItems": settings.batch_messages, "items": wire.MESSAGE}
        },
    }

    @app.post(
        "/v1/messages:batch",
        openapi_extra=wire.body(batch),
        responses={200: wire.answer("results"), **documented(400, 403, 409, 413, 415, 422, 503)},
    )
    async def record_many(request: Request) -> dict[str, Any]:
        """Store up to 1,000 messages, all or none."""
        fields = await read_object(request, limit_bytes=_BATCH_BYTES, required=("messages",))
        stored = await run_in_threadpool(recorder.record_many, fields["messages"])
        return {"results": [wire.recorded(one) for one in stored]}

    @app.get(
        "/v1/users/{user_id}",
        responses={200: wire.answer("user_id", "memory", "time_zone"), **documented(404, 422, 503)},
    )
    def get_user(user_id: str) -> dict[str, Any]:
        """The user's switch and time zone."""
        return wire.user(users.get(user_id))

    @app.put(
        "/v1/users/{user_id}",
        openapi_extra=wire.body(_USER_BODY),
        responses={200: wire.answer("user_id", "memory", "time_zone"), **documented(400, 413, 415, 422, 503)},
    )
    async def put_user(user_id: str, request: Request) -> dict[str, Any]:
        """Create the user or change what is given."""
        fields = await read_object(request, limit_bytes=65_536, required=(), optional=("memory", "time_zone"))
        return wire.user(await run_in_threadpool(users.put, user_id, **fields))

    @app.delete("/v1/users/{user_id}", responses={200: wire.answer("removed"), **documented(404, 422, 503)})
    def delete_user(user_id: str) -> dict[str, Any]:
        """Remove everything of the user; counts per kind."""
        return {"removed": dict(users.delete_user(user_id).removed)}

    @app.delete("/v1/sessions/{session_id}", responses={200: wire.answer("removed"), **documented(403, 404, 422, 503)})
    def delete_session(session_id: str, user_id: UserId) -> dict[str, Any]:
        """Remove a session with its messages and facts; counts per kind."""
        return {"removed": dict(users.delete_session(user_id, session_id).removed)}

    @app.delete("/v1/messages/{message_id}", responses={200: wire.answer("removed"), **documented(404, 422, 503)})
    def delete_message(message_id: str, user_id: UserId) -> dict[str, Any]:
        """Remove one message and everything derived from it; counts per kind."""
        return {"removed": dict(users.delete_message(user_id, message_id).removed)}

    return app
