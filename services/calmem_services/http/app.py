"""Building and serving an app: problems, access log, OpenAPI."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, suppress

import structlog
import uvicorn
from fastapi import Depends, FastAPI, Request
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import STARTUP_FAILURE

from calmem import logs, metrics
from calmem.errors import InvalidInput
from calmem.settings import Settings
from calmem_services.http import problems
from calmem_services.http.access import Access, Limiter, key_prefix, refuse_open
from calmem_services.http.admission import Admission, provide_threads
from calmem_services.http.health import PATHS as HEALTH_PATHS
from calmem_services.http.paths import KeptSlashes
from calmem_services.local.ports import refuse_taken

# How long kept connections stay open after the listening socket was closed.
KEPT_SECONDS = 2.0

# How long an idle connection is kept: longer than clients keep theirs (httpx: 5 s), so that none is ended under a request.
IDLE_SECONDS = 30

log = structlog.get_logger(__name__)


def build(
    title: str,
    description: str,
    *,
    resources: Callable[[], AbstractContextManager[object]],
    access: Access,
    admission: Settings | None = None,
) -> FastAPI:
    """An app without routes; `resources` is entered when it starts and left when it ends, `access` guards /v1/.

    `admission`: limit the requests at work by these settings; their routes may ask `admission.arrived`.
    """

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        if admission is not None:
            provide_threads(admission)
        with resources():
            yield

    app = FastAPI(
        title=title,
        description=description,
        version="1",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(access.check), Depends(_check_query)],
    )
    app.state.access = access
    access.describe(app)
    problems.install(app)
    if admission is not None:
        app.add_middleware(Admission, settings=admission)
    app.add_middleware(AccessLog)
    app.add_middleware(KeptSlashes)  # outside of the log, which reads the route from the same scope
    return app


class AccessLog:
    """One event and one count per request, also for one that crashed or whose client went away."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status: int | None = None

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            if scope["path"] not in HEALTH_PATHS:
                metrics.HTTP.labels("none" if status is None else str(status)).inc()
            prefix = key_prefix(scope)
            log.info(
                "request",
                method=scope["method"],
                # The template, not the path: ids in paths are the user's, and keys of facts are text.
                route=getattr(scope.get("route"), "path_format", None),
                status=status,
                ms=round((time.perf_counter() - began) * 1_000, 1),
                **({} if prefix is None else {"key_prefix": prefix}),
            )


async def _check_query(request: Request) -> None:
    """Refuse parameters that a route does not know (a misspelt filter would widen the answer) or gets twice."""
    route = request.scope.get("route")
    if not isinstance(route, APIRoute) or not route.path.startswith("/v1/"):
        return
    known = [field.alias for field in route.dependant.query_params]
    seen: set[str] = set()
    for name, _ in request.query_params.multi_items():
        if name not in known:
            raise InvalidInput(name[:80], f"is not a parameter here; known: {', '.join(known) or 'none'}")
        if name in seen:
            raise InvalidInput(name, "is given more than once")
        seen.add(name)


def serve(app: FastAPI, settings: Settings, *, port: int, limiter: Limiter | None = None) -> None:
    """Run the app on `settings.host` until SIGTERM or SIGINT, which requests under way survive; `limiter` counts the requests of each key.

    Raises PermanentError where it would answer other machines without a key, and where somebody listens already.
    """
    logs.configure(settings)
    refuse_open(settings)
    app.state.access.limiter = limiter
    refuse_taken(settings.host, port, instead="stop what listens there, or give another --port")
    log.info("listening", service=app.title, host=settings.host, port=port)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=port,
        log_config=None,
        access_log=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=10,
    )
    server = _Server(config)
    with suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        sys.exit(STARTUP_FAILURE)


class _Server(uvicorn.Server):
    """Stops so that no client loses a request: uvicorn alone closes kept connections under requests on their way."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        # Whoever asks once more on a kept connection is answered, and told to open its next one elsewhere.
        self.server_state.default_headers.append((b"connection", b"close"))
        until = time.monotonic() + KEPT_SECONDS
        while self.server_state.connections and time.monotonic() < until and not self.force_exit:
            await asyncio.sleep(0.05)
        await super().shutdown(sockets)
