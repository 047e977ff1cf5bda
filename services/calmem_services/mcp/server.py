"""The MCP server over the tools, and serving it over stdio."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import anyio
import anyio.to_thread
import structlog
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    ToolAnnotations,
)
from mcp_types import Tool as ShownTool

from calmem import logs, text
from calmem.errors import CalmemError, Forbidden, InvalidInput, NotFound
from calmem.facts import Facts
from calmem.models import ActiveModel, Models
from calmem.recall import Recaller
from calmem.settings import Settings
from calmem.storage.pool import Database
from calmem_services.mcp.tools import Connection, Tool, tools

log = structlog.get_logger(__name__)

# Whose a request is, from what its transport knows of it. Raises CalmemError.
Bind = Callable[[ServerRequestContext[Any, Any]], Connection]
# A model that called a tool rather waits for the whole answer than gets half of it.
_DEADLINE_MS = 5_000
_INSTRUCTIONS = (
    "Long-term memory of one user. Look here before you ask the user for something they may have said before, and keep "
    "what will matter later with remember_fact."
)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What the tools stand on, open."""

    database: Database
    model: ActiveModel
    tools: dict[str, Tool]


class Resources:
    """Makes a Memory, which works inside `opened()`."""

    def __init__(self, settings: Settings) -> None:
        patient = replace(settings, recall_deadline_ms=max(settings.recall_deadline_ms, _DEADLINE_MS))
        database = Database(settings)
        models = Models(settings)
        self._recaller = Recaller(database, patient, models)
        model = ActiveModel(database, models)
        self.memory = Memory(database=database, model=model, tools=tools(Facts(database), self._recaller, model))

    @contextmanager
    def opened(self) -> Iterator[None]:
        with self.memory.database, closing(self._recaller), self.memory.model.warming():
            yield


def create_server(memory: Memory, bind: Bind) -> Server[Any]:
    """The server. Errors of calmem are tool errors with their message; nothing of an unexpected one is told."""

    async def list_tools(
        context: ServerRequestContext[Any, Any], _params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        connection = bind(context)
        return ListToolsResult(
            tools=[_shown(tool) for tool in memory.tools.values() if tool.scope in connection.scopes]
        )

    async def call_tool(context: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> CallToolResult:
        outcome = "ok"
        try:
            connection = bind(context)
            tool = memory.tools.get(params.name)
            if tool is None:
                raise NotFound(f"there is no tool of this name; known: {', '.join(memory.tools)}")
            if tool.scope not in connection.scopes:
                raise Forbidden(f"this connection's key does not open the scope {tool.scope}")
            answer = await anyio.to_thread.run_sync(tool.run, connection, params.arguments or {})
        except CalmemError as exc:
            outcome = type(exc).__name__
            return _error(str(exc))
        except Exception as exc:
            outcome = type(exc).__name__
            log.error("tool_crashed", tool=params.name[:80], error=outcome, exc_info=exc)
            return _error("an error of calmem itself; its log has the details")
        finally:
            known = params.name if params.name in memory.tools else None
            log.info("tool_called", tool=known, outcome=outcome)
        shown = json.dumps(answer, ensure_ascii=False)
        return CallToolResult(content=[TextContent(type="text", text=shown)], structured_content=answer)

    return Server(
        "calmem",
        version=version("calmem"),
        title="calmem",
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def run_stdio(settings: Settings, *, user_id: str, session_id: str | None) -> None:
    """Serve one client over this process's stdin and stdout, until it closes them; logs go to stderr.

    Raises InvalidInput for a user or session that is none.
    """
    logs.configure(settings)
    if not user_id:
        raise InvalidInput("user", "name whose memory it is: --user, or CALMEM_MCP_USER")
    session = text.clean_id(session_id, field="session") if session_id else None
    connection = Connection.of(text.clean_id(user_id, field="user"), session)
    resources = Resources(settings)
    server = create_server(resources.memory, lambda _context: connection)

    async def serve() -> None:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    with resources.opened():
        anyio.run(serve)


def _shown(tool: Tool) -> ShownTool:
    return ShownTool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.arguments,
        output_schema=tool.answer,
        annotations=ToolAnnotations(
            title=tool.title,
            read_only_hint=tool.reads_only,
            destructive_hint=tool.removes,
            idempotent_hint=not tool.removes,
            open_world_hint=False,
        ),
    )


def _error(message: str) -> CallToolResult:
    sendable = message.encode("utf-8", "replace").decode()
    return CallToolResult(content=[TextContent(type="text", text=sendable)], is_error=True)
