"""Ids in paths: a slash that is part of an id (sent as %2F) is told from one between two parts of the path."""

from __future__ import annotations

from urllib.parse import unquote

from starlette.convertors import Convertor, register_url_convertor
from starlette.types import ASGIApp, Receive, Scope, Send

# Half of a surrogate pair: decoding a path never yields it.
_SLASH = "\ud8ff"


class IdConvertor(Convertor[str]):
    """`{name:id}`: any text. Slashes that were sent as they are belong to it too, as long as the path stays clear."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value.replace(_SLASH, "/")

    def to_string(self, value: str) -> str:
        return value.replace("/", "%2F")


register_url_convertor("id", IdConvertor())


class KeptSlashes:
    """Lets the routes see which slashes of the path were sent escaped; the server has unescaped them all."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw: bytes | None = scope.get("raw_path") if scope["type"] == "http" else None
        if raw is not None and b"%2f" in raw.lower():
            # A copy: the server's own must stay fit to be printed.
            parts = raw.split(b"?")[0].decode("latin-1").split("/")
            scope = {**scope, "path": "/".join(unquote(part).replace("/", _SLASH) for part in parts)}
        await self._app(scope, receive, send)
