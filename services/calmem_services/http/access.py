"""Who may call: API keys, what they open, and whose memory they speak for."""

from __future__ import annotations

import copy
import ipaddress
import socket
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute
from starlette.datastructures import Headers

from calmem import metrics, text
from calmem.errors import Forbidden, InvalidInput, PermanentError, RateLimited, TransientError, Unauthorized
from calmem.keys import Keyring
from calmem.model import ApiKey, KeyScope
from calmem.settings import Settings
from calmem.storage import api_keys
from calmem.storage.pool import Database
from calmem_services.http.problems import documented

# Counts one request of a key, named by its prefix; the seconds to wait when that was one too many.
Limiter = Callable[[str], int | None]
_GUARDED = "/v1/"
_CALLER = "calmem.caller"
_SCHEMES: dict[str, Any] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "a key of `calmem keys create`"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "the same key"},
}


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who is calling. `key` None: nobody asks for a key here (loopback, none was ever made)."""

    key: ApiKey | None = None

    def need(self, scope: KeyScope) -> None:
        """Raises Forbidden when the key does not open this scope."""
        if self.key is not None and scope not in self.key.scopes:
            metrics.REFUSED.labels("scope").inc()
            raise Forbidden(f"this key does not open the scope {scope}; it has {', '.join(sorted(self.key.scopes))}")

    def own(self, user_id: object) -> None:
        """Raises Forbidden when the key is bound to another user. An id that is none is left to the use case."""
        if self.key is None or self.key.user_id is None:
            return
        with suppress(InvalidInput):
            if text.clean_id(user_id, field="user_id") != self.key.user_id:
                metrics.REFUSED.labels("user").inc()
                raise Forbidden("user_id: this key is bound to another user")


class Access:
    """The gate of one service.

    `scopes`: what each guarded route needs, "METHOD /path/template" -> scope; a route that is not named needs admin.
    Without any key a caller is let in only where the service is bound to loopback, and is no web page of elsewhere,
    or where `allow_open` is set.
    """

    def __init__(self, database: Database, settings: Settings, scopes: Mapping[str, KeyScope]) -> None:
        self._keyring = Keyring(database)
        self._allow_open = settings.allow_open
        self._may_be_open = settings.allow_open or is_loopback(settings.host)
        self.scopes = dict(scopes)
        self.limiter: Limiter | None = None

    async def identify(self, headers: Headers) -> Caller:
        """The caller by the request's headers, counted against the key's limit.

        Raises Unauthorized, Forbidden, RateLimited, TransientError (nothing is known yet and the database is away).
        """
        offered = offered_key(headers)
        try:
            if self._keyring.ready(offered):
                key = self._keyring.recognise(offered)
            else:
                key = await run_in_threadpool(self._keyring.recognise, offered)
            if key is None and not self._may_be_open:
                raise Unauthorized("no API key was made yet: `calmem keys create`, or CALMEM_ALLOW_OPEN=true")
        except Unauthorized:
            metrics.REFUSED.labels("key").inc()
            raise
        if key is None and not self._allow_open and not is_local(headers):
            metrics.REFUSED.labels("origin").inc()
            raise Forbidden("without an API key only this machine is served; Host or Origin of the request is another")
        if key is not None and self.limiter is not None:
            wait = await run_in_threadpool(self.limiter, key.prefix)
            if wait is not None:
                metrics.REFUSED.labels("rate").inc()
                raise RateLimited(f"too many requests with this key; again in {wait} s", retry_after_seconds=wait)
        return Caller(key=key)

    async def check(self, request: Request) -> None:
        """For every route of an app: the key, its scope, and the user in the path or the query."""
        route = request.scope.get("route")
        if not isinstance(route, APIRoute) or not route.path.startswith(_GUARDED):
            return
        caller = await self.identify(request.headers)
        remember_caller(request.scope, caller)
        caller.need(self.scopes.get(f"{request.method} {route.path_format}", KeyScope.ADMIN))
        for given in (request.path_params.get("user_id"), *request.query_params.getlist("user_id")):
            if given is not None:
                caller.own(given)

    def describe(self, app: FastAPI) -> None:
        """Show the keys and what they open in the app's OpenAPI document; as optional as long as none is asked for."""
        plain = app.openapi

        def openapi() -> dict[str, Any]:
            document = copy.deepcopy(plain())
            document.setdefault("components", {})["securitySchemes"] = _SCHEMES
            without: list[dict[str, list[str]]] = [{}] if self._may_be_open and not self._keyring.keys_exist else []
            for path, operations in document["paths"].items():
                if not path.startswith(_GUARDED):
                    continue
                for method, operation in operations.items():
                    scope = self.scopes.get(f"{method.upper()} {path}", KeyScope.ADMIN)
                    operation["security"] = [*without, *({scheme: [scope.value]} for scheme in _SCHEMES)]
                    answers = documented(401, 403, 429)
                    operation["responses"] |= {str(status): answer for status, answer in answers.items()}
            return document

        app.openapi = openapi  # type: ignore[method-assign]


def remember_caller(scope: MutableMapping[str, Any], caller: Caller) -> None:
    """Who was let in with this request: for the body's check and for the log."""
    scope[_CALLER] = caller


def caller_of(request: Request) -> Caller:
    """Who was let in with this request."""
    caller = request.scope.get(_CALLER)
    return caller if isinstance(caller, Caller) else Caller()


def check_body(request: Request, body: Mapping[str, Any]) -> None:
    """Raises Forbidden when the body, or a message in it, names another user than the key is bound to."""
    caller = caller_of(request)
    messages = body.get("messages")
    for one in (body, *(messages if isinstance(messages, list) else ())):
        if isinstance(one, Mapping) and "user_id" in one:
            caller.own(one["user_id"])


def key_prefix(scope: Mapping[str, Any]) -> str | None:
    """The public part of the request's key, for the log."""
    caller = scope.get(_CALLER)
    return caller.key.prefix if isinstance(caller, Caller) and caller.key is not None else None


def offered_key(headers: Headers) -> str | None:
    """The key in `X-API-Key`, else the one in `Authorization: Bearer`."""
    key = headers.get("x-api-key")
    if key is not None:
        return key.strip()
    scheme, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() or None if scheme.lower() == "bearer" else None


def is_loopback(host: str) -> bool:
    """Whether a service bound to this host is reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None) if host else []
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(str(one[4][0]).split("%")[0]).is_loopback for one in found)


def is_local(headers: Headers) -> bool:
    """Whether neither Host nor Origin is foreign: a browser can be made to send a page's requests to loopback."""
    host, origin = headers.get("host"), headers.get("origin")
    return (not host or _names_loopback(f"//{host}")) and (origin is None or _names_loopback(origin))


def _names_loopback(address: str) -> bool:
    try:
        name = urlsplit(address).hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def refuse_open(settings: Settings) -> None:
    """Raises PermanentError when the services would answer other machines without asking for a key.

    With the database away it cannot be told; a service starts then, and lets nobody in without a key.
    """
    if settings.allow_open or is_loopback(settings.host):
        return
    with suppress(TransientError), Database(settings) as database, database.connection() as conn:
        if not api_keys.any_key(conn):
            raise PermanentError(
                f"not served on {settings.host}: without an API key everybody who reaches it reads every memory. "
                "Make one with `calmem keys create`, bind to 127.0.0.1, or set CALMEM_ALLOW_OPEN=true behind your own proxy"
            )
