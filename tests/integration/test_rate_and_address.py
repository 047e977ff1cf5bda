"""How often a key may ask, and what happens without one (issue 4.4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from calmem.keys import Keys
from calmem.model import KeyScope
from calmem.ratelimit import RateLimiter
from calmem.settings import Settings
from calmem_services.http import access
from calmem_services.ingest.app import create_app as create_ingest
from calmem_services.local.ports import free_ports
from calmem_services.local.redis import EmbeddedRedis
from calmem_services.retrieval.app import create_app as create_retrieval
from tests.support.http import Services, assert_problem, client
from tests.support.keys import ADA, MESSAGE, bearer, cli, make
from tests.support.processes import eventually, running
from tests.support.serving import serving


def limited(settings: Settings, create: Callable[[Settings], Any], per_minute: int) -> Any:
    app = create(settings)
    app.state.access.limiter = RateLimiter(settings.redis_url, per_minute=per_minute)
    return app


def test_the_rate_is_limited_per_key_over_all_processes(settings: Settings, keys: Keys) -> None:
    key, other = make(keys, *KeyScope), make(keys, *KeyScope)
    with (
        client(limited(settings, create_ingest, 3)) as ingest,
        client(limited(settings, create_retrieval, 3)) as retrieval,
    ):
        assert ingest.post("/v1/messages", json=MESSAGE, headers=bearer(key)).status_code == 201
        assert retrieval.get("/v1/facts", params=ADA, headers=bearer(key)).status_code == 200
        assert ingest.get("/v1/users/ada", headers=bearer(key)).status_code == 200
        for answer in (
            ingest.post("/v1/messages", json=MESSAGE, headers=bearer(key)),
            retrieval.get("/v1/facts", params=ADA, headers={"X-API-Key": key.secret}),
        ):
            assert_problem(answer, 429)
            assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert ingest.get("/v1/users/ada", headers=bearer(other)).status_code == 200
        assert ingest.get("/healthz").status_code == 200
        # A wrong key uses up nobody's requests.
        for _ in range(5):
            assert ingest.get("/v1/users/ada", headers={"X-API-Key": other.secret[:-3] + "abc"}).status_code == 401
        assert ingest.get("/v1/users/ada", headers=bearer(other)).status_code == 200


@pytest.mark.parametrize(
    "command",
    [
        ["serve", "ingest"],
        ["serve", "retrieval"],
        ["gateway", "--upstream", "http://127.0.0.1:9/v1"],
        ["console"],
        ["mcp", "--http"],
    ],
)
def test_a_rate_without_redis_to_count_in_is_refused(settings: Settings, command: list[str]) -> None:
    answer = cli(replace(settings, redis_url="", rate_limit_per_minute=60), *command)
    assert answer.returncode != 0
    assert "CALMEM_REDIS_URL: must be set" in answer.stderr


def test_the_window_ends_by_itself(
    settings: Settings, redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    import calmem.ratelimit

    monkeypatch.setattr(calmem.ratelimit, "WINDOW_SECONDS", 1)
    limiter = RateLimiter(settings.redis_url, per_minute=1)

    assert limiter("0" * 12) is None
    assert limiter("0" * 12) == 1
    assert limiter("1" * 12) is None
    eventually(lambda: limiter("0" * 12) is None, "a request passes in the next window")


def test_without_redis_requests_pass_uncounted_and_say_so(
    settings: Settings, keys: Keys, redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    key = make(keys, *KeyScope)
    with serving(replace(settings, rate_limit_per_minute=1), tmp_path) as calmem:
        assert calmem.retrieval.get("/v1/facts", params=ADA, headers=bearer(key)).status_code == 200
        assert calmem.retrieval.get("/v1/facts", params=ADA, headers=bearer(key)).status_code == 429
        redis_server.stop()
        for _ in range(5):
            assert calmem.retrieval.get("/v1/facts", params=ADA, headers=bearer(key)).status_code == 200
        assert "calmem_rate_limit_unchecked_total 5.0" in calmem.retrieval.get("/metrics").text
        assert calmem.logs().count('"rate_limit_unavailable"') == 1
        redis_server.start()
        get = calmem.retrieval.get
        eventually(
            lambda: get("/v1/facts", params=ADA, headers=bearer(key)).status_code == 429, "the limit holds again"
        )


def test_without_a_key_nothing_but_loopback_is_served(settings: Settings, keys: Keys) -> None:
    (port,) = free_ports(1)
    for command in (["serve", "ingest"], ["serve", "retrieval"], ["mcp", "--http"]):
        ended = cli(settings, *command, "--host", "0.0.0.0", "--port", str(port))
        assert ended.returncode == 1
        assert "calmem keys create" in ended.stderr
        assert "CALMEM_ALLOW_OPEN" in ended.stderr
    assert cli(replace(settings, host="0.0.0.0"), "serve", "ingest").returncode == 1


@pytest.mark.parametrize("how", ["a key exists", "allow_open"])
def test_any_host_is_served_with_a_key_or_where_it_is_allowed(
    settings: Settings, keys: Keys, tmp_path: Path, how: str
) -> None:
    key = make(keys, *KeyScope) if how == "a key exists" else None
    (port,) = free_ports(1)
    chosen = replace(settings, ingest_port=port, allow_open=how == "allow_open")
    with (
        running(["serve", "ingest", "--host", "0.0.0.0"], chosen, tmp_path / "log", ready='"listening"') as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http,
    ):

        def up() -> bool:
            try:
                return http.get("/healthz").status_code == 200
            except httpx.TransportError:
                return not process.running

        eventually(up, "ingest answers")
        assert process.running, process.text()
        if key is None:
            assert http.post("/v1/messages", json=MESSAGE).status_code == 201
        else:
            assert_problem(http.post("/v1/messages", json=MESSAGE), 401)
            assert http.post("/v1/messages", json=MESSAGE, headers=bearer(key)).status_code == 201


def test_bound_to_another_address_it_lets_nobody_in_when_there_is_no_key(settings: Settings) -> None:
    """Also when it could not be told at the start, because the database was away."""
    with client(create_ingest(replace(settings, host="0.0.0.0"))) as http:
        assert "calmem keys create" in assert_problem(http.post("/v1/messages", json=MESSAGE), 401)["detail"]
        assert {} not in http.get("/openapi.json").json()["paths"]["/v1/messages"]["post"]["security"]


@pytest.mark.parametrize(
    ("headers", "local"),
    [
        ({}, True),
        ({"Host": "localhost:8101"}, True),
        ({"Host": "[::1]:8101", "Origin": "http://localhost:3000"}, True),
        ({"Host": "evil.example:8101"}, False),
        ({"Host": "127.0.0.1.evil.example"}, False),
        ({"Host": "localhost.evil.example"}, False),
        ({"Origin": "https://evil.example"}, False),
        ({"Origin": "http://127.0.0.1@evil.example"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": ""}, False),
        ({"Host": "[::1"}, False),
    ],
)
def test_without_a_key_no_web_page_is_served(settings: Settings, headers: dict[str, str], local: bool) -> None:
    with client(create_ingest(settings)) as http:
        answer = http.post("/v1/messages", json=MESSAGE, headers=headers)
        if local:
            assert answer.status_code == 201
        else:
            assert_problem(answer, 403)
    with client(create_ingest(replace(settings, allow_open=True))) as http:
        assert http.post("/v1/messages", json=MESSAGE, headers=headers).status_code == 201


def test_with_a_key_any_host_and_origin_is_served(calmem: Services, keys: Keys) -> None:
    key = make(keys, KeyScope.RECORD)
    elsewhere = {"Host": "memory.example", "Origin": "https://app.example", **bearer(key)}
    assert calmem.ingest.post("/v1/messages", json=MESSAGE, headers=elsewhere).status_code == 201


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("192.168.1.5", False),
        ("::ffff:192.168.1.5", False),
        ("no.such.host.invalid", False),
    ],
)
def test_what_counts_as_loopback(host: str, expected: bool) -> None:
    assert access.is_loopback(host) is expected
