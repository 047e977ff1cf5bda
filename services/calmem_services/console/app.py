"""The web console as an app: what its pages stand on, and how errors look."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from calmem.errors import CalmemError, Unauthorized
from calmem.logins import Logins
from calmem.models import ActiveModel, Models
from calmem.recall import Recaller
from calmem.settings import Settings
from calmem.storage.pool import Database
from calmem_services.console import actions, login, playground, reading
from calmem_services.console.gate import Gate, SecurityHeaders
from calmem_services.console.pages import FOLDER, render
from calmem_services.http import health, problems
from calmem_services.http.access import Access
from calmem_services.http.app import build

log = structlog.get_logger(__name__)


def create_app(settings: Settings) -> FastAPI:
    """The console over Postgres, the model and the queue; holds no state of its own."""
    database = Database(settings)
    models = Models(settings)
    recaller = Recaller(database, settings, models)
    model = ActiveModel(database, models)
    access = Access(database, settings, {})
    gate = Gate(access, Logins(database, settings))

    @contextmanager
    def resources() -> Iterator[None]:
        with database, closing(recaller), model.warming():
            yield

    app = build("calmem console", "Pages for an operator.", resources=resources, access=access)
    app.include_router(health.router(database, settings, {"model": model.check}, serves_without=True))
    app.include_router(login.router(gate))
    app.include_router(reading.router(gate, database, settings))
    app.include_router(playground.router(gate, database, settings, recaller))
    app.include_router(actions.router(gate, database, settings))
    app.mount("/static", StaticFiles(directory=FOLDER / "static"), name="static")
    app.add_middleware(SecurityHeaders)
    _show_errors(app)
    return app


def _show_errors(app: FastAPI) -> None:
    """Every error as a page instead of a problem document."""

    def unauthorized(_request: Request, _exc: Exception) -> Response:
        return RedirectResponse("/login", status_code=HTTPStatus.SEE_OTHER)

    def calmem_error(request: Request, exc: Exception) -> Response:
        status = problems.status_of(exc)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            log.warning("request_failed", path=request.url.path, error=str(exc))
        return _page(request, status, str(exc))

    def http_error(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, HTTPException)
        status = HTTPStatus(exc.status_code)
        return _page(request, status, "there is no such page here")

    def invalid(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, RequestValidationError)
        first = exc.errors()[0]
        return _page(request, HTTPStatus.UNPROCESSABLE_ENTITY, f"{first['loc'][-1]}: {first['msg']}")

    def unexpected(request: Request, exc: Exception) -> Response:
        log.error("request_crashed", path=request.url.path, error=type(exc).__name__, exc_info=exc)
        return _page(request, HTTPStatus.INTERNAL_SERVER_ERROR, "an error of calmem itself; its log has the details")

    app.add_exception_handler(Unauthorized, unauthorized)
    app.add_exception_handler(CalmemError, calmem_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Exception, unexpected)


def _page(request: Request, status: HTTPStatus, detail: str) -> Response:
    return render(request, None, "error.html", status=int(status), title=status.phrase, detail=detail)
