"""The MCP server over streamable HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from mcp.server.context import ServerRequestContext
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from calmem import text
from calmem.errors import Forbidden, Unauthorized
from calmem.settings import Settings
from calmem_services.http import health
from calmem_services.http.access import Access, Caller, is_loopback, remember_caller
from calmem_services.http.app import build
from calmem_services.mcp.server import Resources, create_server
from calmem_services.mcp.tools import Connection

PATH = "/mcp"
USER_HEADER = "X-Calmem-User"
SESSION_HEADER = "X-Calmem-Session"
_CONNECTION = "calmem.connection"


def create_app(settings: Settings) -> FastAPI:
    """MCP at /mcp, and the health routes. Stateless: any replica answers any request."""
    resources = Resources(settings)
    memory = resources.memory
    access = Access(memory.database, settings, {})
    app = build("calmem mcp", "Facts and memory as MCP tools, at /mcp.", resources=resources.opened, access=access)
    app.include_router(health.router(memory.database, settings, {"model": memory.model.check}))
    manager = StreamableHTTPSessionManager(create_server(memory, _bound), stateless=True, json_response=True)
    guarded = _Guarded(manager, access, header_allowed=is_loopback(settings.host))
    guarded.route = Route(PATH, endpoint=guarded)
    app.router.routes.append(guarded.route)
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(one: FastAPI) -> AsyncIterator[None]:
        async with inner(one), manager.run():
            yield

    app.router.lifespan_context = lifespan
    return app


class _Guarded:
    """Lets a request through to MCP once it is known whose it is."""

    def __init__(self, manager: StreamableHTTPSessionManager, access: Access, *, header_allowed: bool) -> None:
        self._manager = manager
        self._access = access
        self._header_allowed = header_allowed
        self.route: Route | None = None  # for the access log, as FastAPI names it for its own routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = self.route
        request = Request(scope)
        caller = await self._access.identify(request.headers)
        remember_caller(scope, caller)
        scope[_CONNECTION] = self._connection(request, caller)
        await self._manager.handle_request(scope, receive, send)

    def _connection(self, request: Request, caller: Caller) -> Connection:
        named = request.headers.get(USER_HEADER)
        session = request.headers.get(SESSION_HEADER)
        session_id = None if session is None else text.clean_id(session, field=SESSION_HEADER)
        if caller.key is None:
            if not self._header_allowed or named is None:
                raise Unauthorized(
                    f"say whose memory it is: a key made with `--user`, or on this machine {USER_HEADER}"
                )
            return Connection.of(text.clean_id(named, field=USER_HEADER), session_id)
        if caller.key.user_id is None:
            raise Forbidden("this key is bound to no user; make one for MCP with `calmem keys create --user …`")
        if named is not None:
            caller.own(named)
        return Connection.of(caller.key.user_id, session_id, caller.key.scopes)


def _bound(context: ServerRequestContext[Any, Any]) -> Connection:
    request = context.request
    connection = request.scope.get(_CONNECTION) if isinstance(request, Request) else None
    if not isinstance(connection, Connection):
        raise Unauthorized("this request came without a connection's user")
    return connection
