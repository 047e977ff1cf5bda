"""RFC 9457 problem documents for every error a client can see."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from calmem.errors import (
    CalmemError,
    Conflict,
    Forbidden,
    InvalidInput,
    ModelUnavailable,
    NotFound,
    RateLimited,
    TransientError,
    Unauthorized,
)

log = structlog.get_logger(__name__)

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = "1"
_LONGEST_TEXT = 1_000

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "what is wrong and what would be right"},
        "field": {"type": "string", "description": "the value that is wrong"},
        "error": {"type": "string", "description": "the class of this error in `calmem.errors`"},
    },
}

_STATUS: tuple[tuple[type[CalmemError], HTTPStatus], ...] = (
    (InvalidInput, HTTPStatus.UNPROCESSABLE_ENTITY),
    (Unauthorized, HTTPStatus.UNAUTHORIZED),
    (Conflict, HTTPStatus.CONFLICT),
    (Forbidden, HTTPStatus.FORBIDDEN),
    (NotFound, HTTPStatus.NOT_FOUND),
    (RateLimited, HTTPStatus.TOO_MANY_REQUESTS),
    (TransientError, HTTPStatus.SERVICE_UNAVAILABLE),
    (ModelUnavailable, HTTPStatus.SERVICE_UNAVAILABLE),
)


class Problem(Exception):
    """An error of the HTTP exchange itself."""

    def __init__(self, status: HTTPStatus, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI `responses` for these statuses."""
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": SCHEMA}}}
        for status in statuses
    }


def status_of(exc: Exception) -> HTTPStatus:
    """The status that an error of calmem is answered with."""
    return next((status for kind, status in _STATUS if isinstance(exc, kind)), HTTPStatus.INTERNAL_SERVER_ERROR)


def overloaded() -> JSONResponse:
    """The answer to a request that the service has no turn for."""
    return _document(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "this service works on as many requests as it can, and as many wait; nothing was done, try again",
        error=TransientError.__name__,
    )


def install(app: FastAPI) -> None:
    """Answer every error of the app as a problem document."""

    def problem(_request: Request, exc: Exception) -> JSONResponse:
        assert isinstance(exc, Problem)
        return _document(exc.status, exc.detail)

    def calmem_error(request: Request, exc: Exception) -> JSONResponse:
        status = status_of(exc)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            log.warning("request_failed", path=_route(request), error=str(exc))
        kind = type(exc).__name__
        if isinstance(exc, InvalidInput):
            return _document(status, str(exc), error=kind, field=exc.field)
        if isinstance(exc, Unauthorized):
            return _document(status, str(exc), error=kind, headers={"WWW-Authenticate": "Bearer"})
        if isinstance(exc, RateLimited):
            return _document(status, str(exc), error=kind, headers={"Retry-After": str(exc.retry_after_seconds)})
        return _document(status, str(exc), error=kind)

    def invalid_parameter(_request: Request, exc: Exception) -> JSONResponse:
        assert isinstance(exc, RequestValidationError)
        first = exc.errors()[0]
        field = str(first["loc"][-1])
        return _document(
            HTTPStatus.UNPROCESSABLE_ENTITY, f"{field}: {first['msg']}", error=InvalidInput.__name__, field=field
        )

    def http_error(_request: Request, exc: Exception) -> JSONResponse:
        assert isinstance(exc, HTTPException)
        status = HTTPStatus(exc.status_code)
        return _document(
            status, f"{status.phrase}: see /openapi.json for the routes and their methods", headers=exc.headers
        )

    def unexpected(request: Request, exc: Exception) -> JSONResponse:
        log.error("request_crashed", path=_route(request), error=type(exc).__name__, exc_info=exc)
        return _document(HTTPStatus.INTERNAL_SERVER_ERROR, "an error of calmem itself; its log has the details")

    app.add_exception_handler(Problem, problem)
    app.add_exception_handler(CalmemError, calmem_error)
    app.add_exception_handler(RequestValidationError, invalid_parameter)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(Exception, unexpected)


def _route(request: Request) -> str:
    route = request.scope.get("route")
    return str(getattr(route, "path", ""))


def _sendable(text: str) -> str:
    """Text that quotes the request (an unknown field's name) may hold lone surrogates and have any length."""
    return text.encode("utf-8", "replace").decode()[:_LONGEST_TEXT]


def _document(
    status: HTTPStatus, detail: str, *, error: str | None = None, field: str | None = None, headers: Any = None
) -> JSONResponse:
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": status.phrase,
        "status": int(status),
        "detail": _sendable(detail),
    }
    if error is not None:
        body["error"] = error
    if field is not None:
        body["field"] = _sendable(field)
    extra = dict(headers or {})
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        extra["Retry-After"] = RETRY_AFTER_SECONDS
    return JSONResponse(body, status_code=status, media_type=MEDIA_TYPE, headers=extra)
