"""The other side: requests handed on as they came, answers handed back as they come."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import anyio
import httpx
import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from calmem.errors import InvalidInput
from calmem.settings import Settings

log = structlog.get_logger(__name__)

RawHeaders = Sequence[tuple[bytes, bytes]]
Finished = Callable[[httpx.Response, bytes], None]

_CONNECT_SECONDS = 10.0
# An answer longer than that is handed on like any other, and not recorded.
_KEPT_BYTES = 16_777_216
# They belong to one connection (RFC 9110, 7.6.1), not to the message.
_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding upgrade".split()
)
_NOT_SENT = _HOP_BY_HOP | {b"host", b"content-length", b"expect"}
# uvicorn writes its own.
_NOT_RETURNED = _HOP_BY_HOP | {b"date", b"server"}


class Upstream:
    """A client of the configured OpenAI-compatible server."""

    def __init__(self, settings: Settings) -> None:
        url = settings.gateway_upstream_url.rstrip("/")
        if not url.startswith(("http://", "https://")):
            raise InvalidInput("CALMEM_GATEWAY_UPSTREAM_URL", "must be an address such as https://api.openai.com/v1")
        self._url = url
        self._key = settings.gateway_upstream_key
        timeout = httpx.Timeout(settings.gateway_timeout_seconds, connect=_CONNECT_SECONDS, pool=None)
        self._http = httpx.AsyncClient(timeout=timeout, limits=httpx.Limits(max_keepalive_connections=100))

    async def close(self) -> None:
        await self._http.aclose()

    def request(
        self, method: str, path: str, headers: RawHeaders, body: bytes, *, plain: bool = False
    ) -> httpx.Request:
        """The request as it came, for the upstream. `path`: below /v1, with its query; `plain`: ask for no compression.

        Our own headers stay here; the configured key takes the place of the client's.
        """
        named = b",".join(value for name, value in headers if name == b"connection").lower().split(b",")
        left_out = _NOT_SENT | {name.strip() for name in named} | ({b"accept-encoding"} if plain else set())
        if self._key:
            left_out |= {b"authorization"}
        sent = [(n, v) for n, v in headers if n not in left_out and not n.startswith(b"x-calmem-")]
        if plain:
            sent.append((b"accept-encoding", b"identity"))
        if self._key:
            sent.append((b"authorization", f"Bearer {self._key}".encode()))
        return httpx.Request(method, f"{self._url}/{path}", headers=sent, content=body)

    async def send(self, request: httpx.Request) -> httpx.Response:
        """The answer with its body still to be read. Raises httpx.HTTPError."""
        return await self._http.send(request, stream=True, follow_redirects=False)


class Relay(Response):
    """Sends a request to the upstream and its answer to the client, byte by byte as it comes.

    `finished` gets a complete answer and its body. When the client goes away the upstream's connection is closed.
    """

    def __init__(self, upstream: Upstream, request: httpx.Request, finished: Finished | None = None) -> None:
        super().__init__()
        self._upstream = upstream
        self._request = request
        self._finished = finished
        self._complete = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as group:

            async def until_left() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                if not self._complete:
                    log.info("client_left")
                group.cancel_scope.cancel()

            group.start_soon(until_left)
            try:
                await self._relay(send, scope, receive)
            except httpx.HTTPError as exc:
                # Left without its end, the server breaks the connection: an answer cut short must not look complete.
                log.warning("upstream_broke_off", error=type(exc).__name__)
            group.cancel_scope.cancel()

    async def _relay(self, send: Send, scope: Scope, receive: Receive) -> None:
        try:
            answer = await self._upstream.send(self._request)
        except httpx.HTTPError as exc:
            log.warning("upstream_unreachable", error=type(exc).__name__)
            late = isinstance(exc, httpx.ReadTimeout)
            problem = error(
                504 if late else 502,
                "the upstream did not answer in time" if late else "the upstream cannot be reached",
                "upstream_error",
            )
            await problem(scope, receive, send)
            return
        try:
            headers = [(n.lower(), v) for n, v in answer.headers.raw if n.lower() not in _NOT_RETURNED]
            await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
            kept = bytearray()
            async for piece in answer.aiter_raw():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                if self._finished is not None and len(kept) <= _KEPT_BYTES:
                    kept += piece
            self._complete = True
            if self._finished is not None and len(kept) <= _KEPT_BYTES:
                self._finished(answer, bytes(kept))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            with anyio.CancelScope(shield=True):
                await answer.aclose()


def error(status: int, message: str, kind: str) -> Response:
    """An error of the gateway's own, in the form that OpenAI's clients read."""
    body = {"error": {"message": f"calmem gateway: {message}", "type": kind, "param": None, "code": None}}
    return Response(json.dumps(body), status_code=status, media_type="application/json")
