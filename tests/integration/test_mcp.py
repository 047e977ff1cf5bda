"""The MCP server over stdio and streamable HTTP, by the SDK's client (spec 6, issue 4.2)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest
from mcp import Client, StdioServerParameters

from calmem import Memory
from calmem.settings import Settings
from calmem_services.local.stack import environment
from calmem_services.mcp.app import create_app
from calmem_services.mcp.tools import Connection
from tests.support.http import client
from tests.support.mcp import COMMAND, HELLO, MODES, NAMES, answer, error, make_key, over_http, over_stdio, run

DOCS = Path(__file__).parents[2] / "docs" / "mcp.md"
# Opens a client as this user; the session's default is the user's own.
Connect: TypeAlias = Callable[[str], AbstractAsyncContextManager[Client]]


@pytest.fixture(params=[(transport, mode) for transport in ("stdio", "http") for mode in MODES], ids="-".join)
def connect(request: pytest.FixtureRequest, settings: Settings) -> Iterator[Connect]:
    transport, mode = request.param
    if transport == "stdio":

        @asynccontextmanager
        async def stdio(user: str) -> AsyncIterator[Client]:
            async with over_stdio(settings, "--user", user, mode=mode) as opened:
                yield opened

        yield stdio
        return
    with client(create_app(settings)) as http:

        @asynccontextmanager
        async def by_url(user: str) -> AsyncIterator[Client]:
            async with over_http(f"{http.base_url}/mcp", {"X-Calmem-User": user}, mode=mode) as opened:
                yield opened

        yield by_url


def test_the_tools_are_described_and_their_schemas_are_plain_objects(connect: Connect) -> None:
    async def use() -> list[Any]:
        async with connect("ada") as opened:
            assert opened.instructions
            return list((await opened.list_tools()).tools)

    tools = run(use)

    assert [tool.name for tool in tools] == NAMES
    for tool in tools:
        assert len(tool.description) > 100
        for schema in (tool.input_schema, tool.output_schema):
            assert schema["type"] == "object"
            assert schema["properties"]
            assert not re.search(r'"(anyOf|oneOf|allOf|not|\$ref)"', json.dumps(schema))
        assert tool.input_schema["additionalProperties"] is False
        for name, argument in tool.input_schema["properties"].items():
            assert name != "user_id"
            assert isinstance(argument["type"], str)
            assert argument["description"]
    assert [tool.annotations.read_only_hint for tool in tools] == [False, True, False, True]
    assert [tool.annotations.destructive_hint for tool in tools] == [False, False, True, False]


def test_facts_and_memory_from_one_end_to_the_other(connect: Connect, memory: Memory) -> None:
    memory.record(user_id="ada", session_id="chat", role="user", content="The boiler is a Vaillant.", name="Ada")
    memory.remember_fact(user_id="ada", session_id="chat", key="home.city", value="Turin")

    async def use() -> None:
        async with connect("ada") as opened:
            stored = answer(
                await opened.call_tool("remember_fact", {"key": "diet", "value": "no walnuts", "category": ""})
            )
            assert stored["stored"] is True
            assert stored["fact"]["category"] == "general"
            assert stored["fact"]["session_id"] == "mcp:ada"

            every = answer(await opened.call_tool("recall_facts", {}))["facts"]
            assert [(fact["key"], fact["value"]) for fact in every] == [("diet", "no walnuts"), ("home.city", "Turin")]
            some = answer(await opened.call_tool("recall_facts", {"pattern": "home.*", "category": None}))["facts"]
            assert [fact["key"] for fact in some] == ["home.city"]

            found = answer(await opened.call_tool("search_memory", {"query": "boiler", "limit": 3.0}))["items"]
            assert [(item["text"], item["name"], item["session_id"]) for item in found] == [
                ("The boiler is a Vaillant.", "Ada", "chat")
            ]
            inside = {"query": "boiler", "session_id": "elsewhere"}
            assert answer(await opened.call_tool("search_memory", inside)) == {"items": []}

            assert answer(await opened.call_tool("forget_fact", {"key": "diet"})) == {"removed": 1}
            of_chat = {"key": "home.city", "session_id": "chat"}
            assert answer(await opened.call_tool("forget_fact", of_chat)) == {"removed": 1}
            assert answer(await opened.call_tool("recall_facts", {})) == {"facts": []}

    run(use)
    assert memory.recall_facts(user_id="ada") == []


def test_errors_are_tool_errors_that_say_what_is_wrong(connect: Connect, memory: Memory) -> None:
    memory.remember_fact(user_id="bob", session_id="his", key="diet", value="no fish")
    memory.put_user("ada")
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("remember_fact", {"value": "x"}, "key: is missing"),
        ("remember_fact", {"key": "k", "value": None}, "value: is missing"),
        ("remember_fact", {"key": "k", "value": " "}, "value: must not be empty"),
        ("remember_fact", {"key": "k", "value": 7}, "value: "),
        ("remember_fact", {"key": "k", "value": "v", "expires_at": "soon"}, "expires_at: "),
        ("remember_fact", {"key": "k", "value": "v", "user_id": "bob"}, "user_id: is not an argument here"),
        ("recall_facts", {"user_id": "bob"}, "user_id: is not an argument here"),
        ("recall_facts", {"pattern": ["*"]}, "pattern: must be text"),
        ("forget_fact", {"key": "k"}, "session_id: this user has no such session"),
        ("forget_fact", {"key": "diet", "session_id": "his"}, "session_id: this session is not this user's"),
        ("search_memory", {"query": "boiler", "limit": 0}, "limit: must be a whole number from 1"),
        ("search_memory", {"query": "boiler", "since": "2026-12-01"}, "since: "),
        ("search_memory", {"query": "fish", "session_id": "his"}, "session_id: this session is not this user's"),
        ("read_everything", {}, "there is no tool of this name; known: remember_fact"),
    ]

    async def use() -> None:
        async with connect("ada") as opened:
            for tool, arguments, message in wrong:
                assert message in error(await opened.call_tool(tool, arguments)), (tool, arguments)

    run(use)
    assert memory.recall_facts(user_id="ada") == []
    assert [fact.value for fact in memory.recall_facts(user_id="bob")] == ["no fish"]


def test_users_do_not_meet_and_memory_off_stores_nothing(connect: Connect, memory: Memory) -> None:
    memory.record(user_id="bob", session_id="his", role="user", content="The boiler is a Vaillant.")
    memory.put_user("carol", memory="off")

    async def use() -> None:
        async with connect("ada") as ada, connect("bob") as bob, connect("carol") as carol:
            for opened in (ada, bob):
                answer(await opened.call_tool("remember_fact", {"key": "diet", "value": "plain"}))
            assert answer(await ada.call_tool("search_memory", {"query": "boiler"})) == {"items": []}
            assert len(answer(await bob.call_tool("search_memory", {"query": "boiler"}))["items"]) == 1
            assert len(answer(await ada.call_tool("recall_facts", {}))["facts"]) == 1
            refused = answer(await carol.call_tool("remember_fact", {"key": "diet", "value": "plain"}))
            assert refused == {"stored": False, "reason": "this user has switched memory off"}

    run(use)
    memory.put_user("carol", memory="on")
    assert memory.recall_facts(user_id="carol") == []


def test_an_outage_of_the_database_is_a_tool_error_and_the_server_lives_on(settings: Settings, memory: Memory) -> None:
    away = replace(
        settings, database_url="postgresql://calmem:sesame@127.0.0.1:1/calmem", pool_wait_seconds=0.2, mcp_user="ada"
    )

    async def use() -> None:
        async with over_stdio(away) as opened:
            for _ in range(2):
                message = error(await opened.call_tool("recall_facts", {}))
                assert "database" in message
                assert "sesame" not in message
            assert [tool.name for tool in (await opened.list_tools()).tools] == NAMES

    run(use)


def test_session_and_user_of_stdio_come_from_options_or_settings(settings: Settings, memory: Memory) -> None:
    async def use(*arguments: str) -> None:
        async with over_stdio(replace(settings, mcp_user="ada", mcp_session="s1"), *arguments) as opened:
            answer(await opened.call_tool("remember_fact", {"key": "diet", "value": "plain"}))

    run(use)
    run(lambda: use("--user", "bob", "--session", "s2"))

    assert [fact.session_id for fact in memory.recall_facts(user_id="ada")] == ["s1"]
    assert [fact.session_id for fact in memory.recall_facts(user_id="bob")] == ["s2"]


@pytest.mark.parametrize("arguments", [[], ["--user", "*"], ["--user", "ada", "--session", "%"]])
def test_stdio_without_a_user_ends_with_a_message(settings: Settings, arguments: list[str]) -> None:
    ended = subprocess.run(
        [*COMMAND, "mcp", *arguments],
        env=environment(settings),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )

    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ("session: " if "--session" in arguments else "user: ") in ended.stderr


def test_stdout_of_stdio_holds_the_protocol_and_nothing_else(settings: Settings) -> None:
    done = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    call = {
        "jsonrpc": "2.0",
        "id": 2,
        "method": "tools/call",
        "params": {"name": "search_memory", "arguments": {"query": "q"}},
    }
    process = subprocess.Popen(
        [*COMMAND, "mcp", "--user", "ada"],
        env=environment(replace(settings, log_level="debug")),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for message in (HELLO, done, call):
        process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()
    lines = [process.stdout.readline() for _ in range(2)]
    rest, logged = process.communicate(timeout=60)

    assert [json.loads(line)["id"] for line in lines] == [1, 2]
    assert rest == ""
    assert '"tool_called"' in logged
    assert process.returncode == 0


def test_the_default_session_of_a_long_user_id_is_an_id_too() -> None:
    assert Connection.of("ada", None).session_id == "mcp:ada"
    assert Connection.of("ada", "s1").session_id == "s1"
    long = {Connection.of("a" * 255 + last, None).session_id for last in "xy"}
    assert len(long) == 2
    assert all(len(session) <= 256 for session in long)


def documented() -> list[tuple[str, dict[str, Any]]]:
    """The JSON blocks of docs/mcp.md with the name of the file that each belongs into, which stands in the text before it."""
    shown = re.findall(r"(.*?)```json\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    return [(re.findall(r"`([^`\s]+\.json)`", before)[-1], json.loads(block)) for before, block in shown]


def test_the_documented_configurations_work(settings: Settings, memory: Memory) -> None:
    """Those over stdio start the command they name, with the environment they give, but for the two addresses."""
    ways = []
    key = make_key(settings, "facts", "recall", user_id="mei")
    told = {"${input:calmem-key}": key, "${env:CALMEM_KEY}": key}
    stated = environment(settings)
    for name, config in documented():
        (server,) = config["servers" if name == ".vscode/mcp.json" else "mcpServers"].values()
        assert {asked["id"] for asked in config.get("inputs", [])} <= {"calmem-key"}
        if "url" in server:
            headers = server["headers"]
        elif server["command"] == "npx":
            *_, url, _, header = server["args"]
            server, headers = {"url": url}, dict([header.split(":")])
        else:
            ways.append((name, "stdio"))
            assert server["command"] == "/home/mei/calmem/.venv/bin/calmem"
            assert set(server["env"]) == {"CALMEM_DATABASE_URL", "CALMEM_MCP_USER"}
            given = stated | server["env"] | {"CALMEM_DATABASE_URL": settings.database_url}
            command = str(Path(sys.executable).parent / "calmem")
            started = StdioServerParameters(command=command, args=server["args"], env=given)

            async def stdio(started: StdioServerParameters = started, name: str = name) -> None:
                async with Client(started, mode="legacy") as opened:
                    answer(await opened.call_tool("remember_fact", {"key": name, "value": "stdio"}))

            run(stdio)
            assert memory.recall_facts(user_id="mei")[0].key == name
            continue
        ways.append((name, "key" if "Authorization" in headers else "user"))
        url = httpx.URL(server["url"])
        assert (url.host, url.port, url.path) == ("127.0.0.1", Settings().mcp_port, "/mcp")
        ((header, value),) = headers.items()
        if header == "Authorization":
            (placeholder,) = (known for known in told if known in value)
            assert value == f"Bearer {placeholder}"
            sent = {header: value.replace(placeholder, key)}
            with client(create_app(settings)) as http:
                run(partial(_lists_its_tools, f"{http.base_url}/mcp", sent))
        else:
            assert (header, value) == ("X-Calmem-User", "mei")
    assert sorted(ways) == [
        (".vscode/mcp.json", "key"),
        (".vscode/mcp.json", "stdio"),
        (".vscode/mcp.json", "user"),
        ("claude_desktop_config.json", "stdio"),
        ("claude_desktop_config.json", "user"),
        ("~/.cursor/mcp.json", "key"),
        ("~/.cursor/mcp.json", "user"),
    ]


async def _lists_its_tools(url: str, headers: dict[str, str]) -> None:
    async with over_http(url, headers) as opened:
        assert [tool.name for tool in (await opened.list_tools()).tools] == NAMES
