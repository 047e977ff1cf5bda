"""Building and serving an app: problems, access log, OpenAPI."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager

import structlog
import uvicorn
from fastapi import FastAPI, Request, Response

from calmem import logs
from calmem.settings import Settings
from calmem_services.http import problems

log = structlog.get_logger(__name__)


def build(title: str, description: str, *, resources: Callable[[], AbstractContextManager[object]]) -> FastAPI:
    """An app without routes; `resources` is entered when it starts and left when it ends."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        with resources():
            yield

    app = FastAPI(title=title, description=description, version="1", lifespan=lifespan, docs_url=None, redoc_url=None)
    problems.install(app)

    @app.middleware("http")
    async def access_log(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        began = time.perf_counter()
        response = await call_next(request)
        route = request.scope.get("route")
        log.info(
            "request",
            method=request.method,
            # The template, not the path: ids in paths are the user's.
            route=getattr(route, "path", None),
            status=response.status_code,
            ms=round((time.perf_counter() - began) * 1_000, 1),
        )
        return response

    return app


def serve(app: FastAPI, settings: Settings, *, host: str, port: int) -> None:
    """Run the app until SIGTERM or SIGINT."""
    logs.configure(settings)
    log.info("listening", service=app.title, host=host, port=port)
    uvicorn.run(app, host=host, port=port, log_level="warning", access_log=False, timeout_graceful_shutdown=10)
