"""Who gets into the console, what a key opens there, and what a foreign page cannot make a browser do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from playwright.sync_api import Browser, expect

from calmem.keys import Keys
from calmem.memory import Memory
from calmem.model import KeyScope
from calmem.settings import Settings
from calmem_services.console.app import create_app
from calmem_services.local.ports import free_ports
from tests.support.browser import chromium
from tests.support.console import Console, console, page
from tests.support.http import client
from tests.support.keys import bearer, make
from tests.support.processes import eventually, running
from tests.support.rows import rows
from tests.support.serving import ready

_TOKEN = re.compile(r'name="form_token" value="([0-9a-f]{64})"')
EVERYTHING = (KeyScope.RECALL, KeyScope.FACTS, KeyScope.ADMIN)


@pytest.fixture
def served(settings: Settings) -> Iterator[Console]:
    with Memory(settings=settings) as memory:
        for user in ("ada", "ben"):
            memory.record(user_id=user, session_id=f"{user}-1", role="user", content="The boiler.", message_id=user)
            memory.remember_fact(user_id=user, session_id=f"{user}-1", key="diet", value=f"secret of {user}")
    with console(settings) as opened:
        yield opened


def form_token(client: httpx.Client, path: str) -> str:
    found = _TOKEN.search(client.get(path).text)
    assert found is not None, path
    return found[1]


def log_in(client: httpx.Client, secret: str) -> httpx.Response:
    return client.post("/login", data={"form_token": form_token(client, "/login"), "key": secret})


def post(client: httpx.Client, path: str, token: str, headers: Any = None, **fields: str) -> httpx.Response:
    return client.post(path, data={"form_token": token, **fields}, headers=headers)


def test_a_key_logs_in_and_out_in_the_browser(served: Console, keys: Keys) -> None:
    key = make(keys, *EVERYTHING)
    with chromium() as browser, page(browser, width=360) as opened:
        _log_in_by_hand(browser, served, key.secret)
        opened.goto(served.url)
        expect(opened).to_have_url(f"{served.url}/login")
        opened.get_by_label("API key").fill("calmem_nonsense")
        opened.keyboard.press("Enter")
        expect(opened.get_by_role("alert")).to_contain_text("not known")
        opened.get_by_label("API key").fill(key.secret)
        opened.keyboard.press("Enter")
        expect(opened.get_by_role("heading", level=1)).to_have_text("Overview")
        opened.get_by_role("button", name="Log out").click()
        expect(opened.get_by_label("API key")).to_be_visible()
        opened.goto(f"{served.url}/users")
        expect(opened).to_have_url(f"{served.url}/login")


def test_the_cookie_is_hidden_from_scripts_and_other_sites(served: Console, keys: Keys) -> None:
    answer = log_in(served.http, make(keys, *EVERYTHING).secret)
    assert answer.status_code == 303
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("calmem_console=")
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    with psycopg.connect(served.settings.database_url) as conn:
        stored = conn.execute("SELECT encode(token_hash, 'escape') FROM console_logins").fetchall()
    assert len(stored) == 1
    assert cookie.split("=", 1)[1].split(";")[0] not in str(stored)


def test_every_answer_forbids_inline_scripts_and_framing(served: Console, keys: Keys) -> None:
    for path in ("/", "/users", "/static/console.css", "/nowhere", "/healthz"):
        headers = served.http.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
    make(keys, KeyScope.RECALL)


def test_a_login_holds_in_every_process_and_ends_with_its_key(served: Console, keys: Keys) -> None:
    key = make(keys, *EVERYTHING)
    log_in(served.http, key.secret)
    with client(create_app(served.settings)) as second:
        second.cookies.update(served.http.cookies)
        assert second.get("/users").status_code == 200
        keys.revoke(key.key.prefix)
        for one in (second, served.http):
            assert one.get("/users").headers["location"] == "/login"


def test_a_login_runs_out(served: Console, keys: Keys) -> None:
    log_in(served.http, make(keys, *EVERYTHING).secret)
    assert served.http.get("/users").status_code == 200
    with psycopg.connect(served.settings.database_url) as conn:
        conn.execute("UPDATE console_logins SET expires_at = now()")
    assert served.http.get("/users").headers["location"] == "/login"


# In an order in which each can still be done after those before it.
FORMS: tuple[tuple[str, dict[str, str]], ...] = (
    ("/playground", {"user": "ada", "query": "boiler", "fill": "0", "capacity": "1000"}),
    ("/memory", {"user": "ada", "memory": "on"}),
    ("/retry", {}),
    ("/delete", {"kind": "fact", "user": "ada", "session": "ada-1", "key": "diet"}),
    ("/delete", {"kind": "message", "user": "ada", "message": "ada"}),
    ("/delete", {"kind": "session", "user": "ada", "session": "ada-1", "typed": "ada-1"}),
    ("/delete", {"kind": "user", "user": "ada", "typed": "ada"}),
    ("/logout", {}),
)


@pytest.mark.parametrize("with_keys", [True, False])
def test_no_form_is_taken_without_the_visitors_own_token(served: Console, keys: Keys, with_keys: bool) -> None:
    if with_keys:
        log_in(served.http, make(keys, *EVERYTHING).secret)
    token = form_token(served.http, "/playground")
    with client(create_app(served.settings)) as stranger:
        foreign = form_token(stranger, "/login" if with_keys else "/playground")
    before = rows(served.settings)
    for path, fields in FORMS:
        for wrong in ("", foreign, token[:-1], "é"):
            assert post(served.http, path, wrong, **fields).status_code == 403
        for headers in ({"origin": "http://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}):
            assert post(served.http, path, token, headers, **fields).status_code == 403
    assert rows(served.settings) == before
    for path, fields in FORMS:
        assert post(served.http, path, token, {"origin": served.url}, **fields).status_code in (200, 303), path


def test_a_key_opens_its_scopes(served: Console, keys: Keys) -> None:
    opens = {
        KeyScope.RECALL: {"/users", "/user?user=ada", "/session?user=ada&session=ada-1", "/playground", "/failed"},
        KeyScope.FACTS: {
            "/facts?user=ada",
            "/fact?user=ada&session=ada-1&key=diet",
            "/delete?kind=fact&user=ada&session=ada-1&key=diet",
        },
        KeyScope.ADMIN: {"/delete?kind=user&user=ada", "/delete?kind=session&user=ada&session=ada-1"},
        KeyScope.RECORD: set(),
    }
    for scope, mine in opens.items():
        served.http.cookies.clear()
        log_in(served.http, make(keys, scope).secret)
        token = form_token(served.http, "/")
        for path in set().union(*opens.values()):
            assert (served.http.get(path).status_code == 200) == (path in mine), (scope, path)
        if scope is not KeyScope.ADMIN:
            before = rows(served.settings)
            for path, fields in (
                ("/retry", {}),
                ("/memory", {"user": "ada", "memory": "off"}),
                ("/delete", {"kind": "user", "user": "ada", "typed": "ada"}),
            ):
                assert post(served.http, path, token, **fields).status_code == 403
            assert rows(served.settings) == before


def test_a_key_of_one_user_shows_nothing_of_another(served: Console, keys: Keys) -> None:
    with psycopg.connect(served.settings.database_url) as conn:
        conn.execute("UPDATE index_tasks SET attempts = 5, failed_at = now(), error = 'broken'")
    log_in(served.http, make(keys, *EVERYTHING, user_id="ada").secret)
    token = form_token(served.http, "/playground")
    for path in ("/", "/users", "/user?mine=1", "/facts", "/failed", "/playground"):
        answer = served.http.get(path, follow_redirects=True)
        assert answer.status_code == 200
        assert "ben" not in answer.text
    for path in (
        "/user?user=ben",
        "/session?user=ben&session=ben-1",
        "/session?user=ada&session=ben-1",
        "/facts?user=ben",
        "/fact?user=ben&session=ben-1&key=diet",
        "/fact?user=ada&session=ben-1&key=diet",
        "/delete?kind=user&user=ben",
    ):
        answer = served.http.get(path)
        assert answer.status_code == 403
        assert "secret of ben" not in answer.text
    before = rows(served.settings)
    asked = {"user": "ben", "query": "boiler", "fill": "0", "capacity": "1000"}
    assert post(served.http, "/playground", token, **asked).status_code == 422
    assert post(served.http, "/delete", token, kind="user", user="ben", typed="ben").status_code == 403
    assert (
        post(served.http, "/delete", token, kind="session", user="ada", session="ben-1", typed="ben-1").status_code
        == 403
    )
    assert post(served.http, "/retry", token, message="ben").status_code == 404
    assert rows(served.settings) == before
    assert post(served.http, "/retry", token).headers["location"] == "/failed?retried=1"


def test_a_number_of_any_length_in_an_address_is_no_crash(served: Console) -> None:
    asked = {"user": "ada", "session": "ada-1", "active": "9" * 5_000}
    answer = served.http.get("/session", params=asked)
    assert answer.status_code == 200
    assert "in the active context" not in answer.text


def test_a_key_in_a_header_is_no_login(served: Console, keys: Keys) -> None:
    key = make(keys, *EVERYTHING)
    assert served.http.get("/users", headers=bearer(key)).headers["location"] == "/login"


def test_without_any_key_only_this_machine_is_served(settings: Settings) -> None:
    with client(create_app(settings)) as local:
        assert local.get("/users").status_code == 200
        assert local.get("/users", headers={"host": "evil.example"}).status_code == 403
    with client(create_app(replace(settings, host="0.0.0.0"))) as everywhere:
        assert everywhere.get("/users").headers["location"] == "/login"


def test_the_command_serves_it(settings: Settings, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    chosen = replace(settings, console_port=port)
    with (
        running(["console"], chosen, tmp_path / "console.log") as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http,
    ):
        eventually(lambda: not process.running or ready(http), "the console is ready")
        assert process.running, process.text()
        assert "<h1>Overview</h1>" in http.get("/").text


def _log_in_by_hand(browser: Browser, served: Console, secret: str) -> None:
    """Another profile's login; it must not log this one in."""
    with page(browser) as other:
        other.goto(f"{served.url}/login")
        other.get_by_label("API key").fill(secret)
        other.get_by_role("button", name="Log in").click()
        expect(other.get_by_role("heading", level=1)).to_have_text("Overview")
