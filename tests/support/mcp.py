"""The MCP server behind both transports, spoken to by the SDK's own client."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar

import anyio
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp_types import CallToolResult, TextContent

from calmem.keys import Keys
from calmem.settings import Settings
from calmem.storage.pool import Database
from calmem_services.local.stack import environment

T = TypeVar("T")
Mode = Literal["legacy", "auto"]
# The handshake of clients of today, and the one of the protocol of 2026-07.
MODES: tuple[Mode, ...] = ("legacy", "auto")
COMMAND = [sys.executable, "-m", "calmem_services.cli.main"]
NAMES = ["remember_fact", "recall_facts", "forget_fact", "search_memory"]
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


@asynccontextmanager
async def over_stdio(settings: Settings, *arguments: str, mode: Mode = "auto") -> AsyncIterator[Client]:
    """A client of a `calmem mcp` process of its own."""
    command, *first = COMMAND
    server = StdioServerParameters(command=command, args=[*first, "mcp", *arguments], env=environment(settings))
    async with Client(server, mode=mode) as client:
        yield client


@asynccontextmanager
async def over_http(url: str, headers: Mapping[str, str], *, mode: Mode = "auto") -> AsyncIterator[Client]:
    """A client of a server that runs at this URL."""
    async with (
        create_mcp_http_client(headers=dict(headers)) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


def run(use: Callable[[], Awaitable[T]]) -> T:
    return anyio.run(use)


def told(result: CallToolResult) -> str:
    """The text of an answer or an error."""
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


def answer(result: CallToolResult) -> dict[str, Any]:
    """The structured answer of a call that went well."""
    assert not result.is_error, told(result)
    assert isinstance(result.structured_content, dict)
    return result.structured_content


def error(result: CallToolResult) -> str:
    assert result.is_error, result
    return told(result)


def make_key(settings: Settings, *scopes: str, user_id: str | None = None) -> str:
    with Database(settings) as database:
        return Keys(database).create(name="mcp", scopes=scopes, user_id=user_id).secret
