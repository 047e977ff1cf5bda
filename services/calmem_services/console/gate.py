"""Who is at the console: login by API key, form tokens against foreign sites, and the headers of every answer."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from calmem.errors import Forbidden, InvalidInput
from calmem.logins import Logins
from calmem.model import KeyScope
from calmem_services.http.access import Access, Caller, remember_caller
from calmem_services.http.bodies import read_bytes

LOGIN_COOKIE = "calmem_console"
# Ties the forms of who is not logged in (the login itself; everybody, where no key is asked for) to their browser.
_FORM_COOKIE = "calmem_form"
FORM_TOKEN = "form_token"
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_FORM_BYTES = 262_144
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer: with it a browser hides the Origin of the console's own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, kw_only=True)
class Visitor:
    """Who asks. `token`: the secret of their cookie; `fresh`: the cookie is still to be set."""

    caller: Caller
    token: str
    fresh: bool = False

    @property
    def form_token(self) -> str:
        """What their forms carry; a foreign site cannot know it, since it cannot read the cookie."""
        return hmac.new(self.token.encode(), b"calmem console form", hashlib.sha256).hexdigest()

    @property
    def only_user(self) -> str | None:
        """The one user whose memory they may see; None: any."""
        return None if self.caller.key is None else self.caller.key.user_id

    def may(self, scope: KeyScope) -> bool:
        return self.caller.key is None or scope in self.caller.key.scopes


class Gate:
    """Tells visitors apart. A login is a cookie with a random token, whose hash is in the database."""

    def __init__(self, access: Access, logins: Logins) -> None:
        self._access = access
        self._logins = logins

    async def visitor(self, request: Request) -> Visitor:
        """Who is logged in, or anybody on this machine as long as no key was made.

        Raises Unauthorized, Forbidden, TransientError.
        """
        token = _cookie(request, LOGIN_COOKIE)
        key = None if token is None else await run_in_threadpool(self._logins.find, token)
        if token is not None and key is not None:
            visitor = Visitor(caller=Caller(key=key), token=token)
        else:
            await self._access.identify(_without_key(request.headers))
            visitor = self.stranger(request)
        remember_caller(request.scope, visitor.caller)
        return visitor

    def stranger(self, request: Request) -> Visitor:
        """Whoever is not logged in."""
        token = _cookie(request, _FORM_COOKIE)
        return Visitor(caller=Caller(), token=token or secrets.token_urlsafe(32), fresh=token is None)

    async def log_in(self, request: Request, key: str) -> str:
        """The token of a new login. Raises Unauthorized, RateLimited, TransientError."""
        offered = Headers({**_without_key(request.headers), "x-api-key": key.strip()})
        caller = await self._access.identify(offered)
        if caller.key is None:
            raise Forbidden("nobody logs in here as long as no API key was made")
        return await run_in_threadpool(self._logins.begin, caller.key)

    def log_out(self, request: Request) -> None:
        token = _cookie(request, LOGIN_COOKIE)
        if token is not None:
            self._logins.end(token)


def keep(request: Request, response: Response, visitor: Visitor) -> None:
    """Set the cookie of a new visitor's forms."""
    if visitor.fresh:
        set_cookie(request, response, _FORM_COOKIE, visitor.token)


def set_cookie(request: Request, response: Response, name: str, token: str) -> None:
    response.set_cookie(name, token, path="/", httponly=True, samesite="strict", secure=request.url.scheme == "https")


def _cookie(request: Request, name: str) -> str | None:
    token = request.cookies.get(name, "")
    return token if _TOKEN.fullmatch(token) else None


def _without_key(headers: Headers) -> Headers:
    return Headers({name: headers[name] for name in ("host", "origin") if name in headers})


async def read_form(request: Request, visitor: Visitor) -> Mapping[str, str]:
    """The fields of a form that one of the visitor's own pages sent. Raises Forbidden for any other, InvalidInput."""
    origin = request.headers.get("origin")
    foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("host")
    if foreign or request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Forbidden("this form was sent by a page that is not this console's")
    body = await read_bytes(request, limit_bytes=_FORM_BYTES)
    if body is None:
        raise InvalidInput("form", f"has more than {_FORM_BYTES} bytes")
    try:
        fields = dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=50))
    except ValueError as exc:
        raise InvalidInput("form", "must be application/x-www-form-urlencoded") from exc
    sent = fields.pop(FORM_TOKEN, "")
    if not hmac.compare_digest(sent.encode("utf-8", "surrogatepass"), visitor.form_token.encode()):
        raise Forbidden("this form is not of your login, or the login has ended: open the page again and repeat it")
    return fields


class SecurityHeaders:
    """The same headers on every answer, errors and static files included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._app(scope, receive, guarded)
