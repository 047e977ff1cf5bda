"""The MCP server over streamable HTTP: keys, refusals, and the process that serves it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import httpx

from calmem import Memory
from calmem.settings import Settings
from calmem_services.local.ports import free_ports
from calmem_services.mcp.app import create_app
from tests.support.http import assert_problem, client
from tests.support.mcp import HELLO, MODES, NAMES, Mode, answer, error, make_key, over_http, run
from tests.support.processes import eventually, running
from tests.support.serving import ready

ACCEPT = {"accept": "application/json, text/event-stream"}


def test_over_http_the_key_says_whose_memory_it_is_and_which_tools_there_are(
    settings: Settings, memory: Memory
) -> None:
    whole = make_key(settings, "facts", "recall", user_id="ada")
    reading = make_key(settings, "recall", user_id="ada")
    with client(create_app(settings)) as http:
        url = f"{http.base_url}/mcp"

        async def use(mode: Mode) -> None:
            headers = {"Authorization": f"Bearer {whole}", "X-Calmem-Session": "s1"}
            async with over_http(url, headers, mode=mode) as opened:
                assert [tool.name for tool in (await opened.list_tools()).tools] == NAMES
                stored = answer(await opened.call_tool("remember_fact", {"key": "diet", "value": mode}))
                assert stored["fact"]["session_id"] == "s1"
            async with over_http(url, {"X-API-Key": reading}, mode=mode) as opened:
                assert [tool.name for tool in (await opened.list_tools()).tools] == ["search_memory"]
                refused = await opened.call_tool("remember_fact", {"key": "diet", "value": "x"})
                assert "scope facts" in error(refused)

        for mode in MODES:
            run(lambda mode=mode: use(mode))  # type: ignore[misc]
    assert [fact.value for fact in memory.recall_facts(user_id="ada")] == ["auto"]


def test_over_http_whoever_is_not_let_in_gets_a_problem_document(settings: Settings) -> None:
    def post(http: httpx.Client, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return http.post("/mcp", json=HELLO, headers={**ACCEPT, **named})

    with client(create_app(settings)) as http:
        assert post(http, X_Calmem_User="ada").status_code == 200
        assert_problem(post(http), 401)
        assert_problem(post(http, X_Calmem_User="*"), 422, field="X-Calmem-User")
        assert_problem(post(http, X_Calmem_User="ada", X_Calmem_Session="%"), 422, field="X-Calmem-Session")
        # A page in the user's browser, by its own name for this address, or plainly from elsewhere.
        assert_problem(post(http, X_Calmem_User="ada", Host="evil.example:80"), 403)
        assert_problem(post(http, X_Calmem_User="ada", Origin="http://evil.example"), 403)

    ada, free = make_key(settings, "facts", user_id="ada"), make_key(settings, "facts", "recall", "record", "admin")
    with client(create_app(settings)) as http:
        assert post(http, Authorization=f"Bearer {ada}").status_code == 200
        assert post(http, Authorization=f"Bearer {ada}", X_Calmem_User="ada").status_code == 200
        assert_problem(post(http, Authorization=f"Bearer {ada}", X_Calmem_User="bob"), 403)
        assert "--user" in assert_problem(post(http, Authorization=f"Bearer {free}"), 403)["detail"]
        assert_problem(post(http, Authorization=f"Bearer {free}", X_Calmem_User="bob"), 403)
        answered = post(http, X_Calmem_User="ada")
        assert_problem(answered, 401)
        assert answered.headers["www-authenticate"] == "Bearer"
        # With a key it may stand behind a proxy under any name.
        assert post(http, Authorization=f"Bearer {ada}", Host="memory.example").status_code == 200
        assert http.get("/healthz").status_code == 200
        assert http.get("/metrics").status_code == 200


def test_the_users_header_counts_on_loopback_only(settings: Settings) -> None:
    everywhere = replace(settings, host="0.0.0.0", allow_open=True)
    with client(create_app(everywhere)) as http:
        assert_problem(http.post("/mcp", json=HELLO, headers={**ACCEPT, "X-Calmem-User": "ada"}), 401)


def test_the_process_over_http(settings: Settings, tmp_path: Path) -> None:
    key = make_key(settings, "facts", user_id="ada")
    (port,) = free_ports(1)
    log = tmp_path / "mcp.log"
    with running(["mcp", "--http"], replace(settings, mcp_port=port), log) as process:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            eventually(lambda: not process.running or ready(http), "calmem mcp --http is ready")
            assert process.running, process.text()

        async def use() -> None:
            async with over_http(f"http://127.0.0.1:{port}/mcp", {"Authorization": f"Bearer {key}"}) as opened:
                answer(await opened.call_tool("remember_fact", {"key": "diet", "value": "no walnuts"}))

        run(use)
        process.stop()
    text = log.read_text()
    assert '"tool_called"' in text
    assert '"route": "/mcp"' in text
    assert key not in text
    assert key[20:] not in text
    assert "walnuts" not in text
