"""A console over stored memory of every kind, and a browser's page before it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import psycopg
from playwright.sync_api import Browser, Page

from calmem import Memory
from calmem.settings import Settings
from calmem_services.console.app import create_app
from calmem_workers.main import run_worker
from tests.support.http import client, until_ready

# What stored text must never become, in text and inside an attribute.
SCRIPT = "<script>document.title = 'taken'</script>"
BREAKER = "\"><img src=x onerror=\"document.title='taken'\">'"
USER = f"ada {BREAKER}"
SESSION = f"kitchen {SCRIPT}"
LATER = "garden"
KEY = f"diet {SCRIPT}"

_FAIL = """
UPDATE index_tasks SET attempts = 5, failed_at = now(), error = %s
WHERE message_no = (SELECT message_no FROM messages WHERE message_id = 'm-failed')
"""
_TURNS = (
    ("user", "We decided on SQLite for the stock of the shop."),
    ("assistant", "Then the stock lives in one SQLite file, and the backup copies that file every night."),
    ("user", f"My walnut allergy is serious, so no walnuts in any recipe. {SCRIPT}"),
    ("assistant", f"No walnuts then. {BREAKER}"),
    ("user", "The oven in the kitchen needs a new door seal before Christmas."),
)


def fill(settings: Settings) -> None:
    """Two users; one with two sessions, a replaced fact, a failed and a waiting message."""
    with Memory(settings=settings) as memory:
        for number, (role, content) in enumerate(_TURNS, 1):
            memory.record(
                user_id=USER,
                session_id=SESSION,
                role=role,
                name="Ada" if role == "user" else None,
                content=content,
                message_id=f"m{number}",
                created_at=f"2026-01-0{number}T10:00:00+00:00",
            )
        memory.record(user_id="ben", session_id="ben-1", role="user", content="Ben likes sailing.", message_id="b1")
        run_worker(settings, burst=True)
        for value in ("no nuts", f"no walnuts {BREAKER}"):
            memory.remember_fact(user_id=USER, session_id=SESSION, key=KEY, value=value)
        memory.record(user_id=USER, session_id=LATER, role="user", content="Roses need water.", message_id="m-failed")
        memory.record(user_id=USER, session_id=LATER, role="user", content="Tulips are early.", message_id="m-waiting")
    with psycopg.connect(settings.database_url) as conn:
        conn.execute(_FAIL, (f"the runtime refused the text {SCRIPT}",))


@dataclass(frozen=True, kw_only=True)
class Console:
    """A served console: its address, and a client without a browser."""

    url: str
    http: httpx.Client
    settings: Settings


@contextmanager
def console(settings: Settings) -> Iterator[Console]:
    with client(create_app(settings)) as opened:
        until_ready(opened)
        yield Console(url=str(opened.base_url).rstrip("/"), http=opened, settings=settings)


@contextmanager
def page(browser: Browser, *, width: int = 1280, script: bool = True) -> Iterator[Page]:
    """A page in a browser profile of its own; what the page's console and its errors say fails the test."""
    with browser.new_context(viewport={"width": width, "height": 800}, java_script_enabled=script) as context:
        opened = context.new_page()
        said: list[str] = []
        opened.on(
            "console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None
        )
        opened.on("pageerror", lambda error: said.append(str(error)))
        yield opened
        unexpected = [text for text in said if "Failed to load resource" not in text]
        assert unexpected == []
