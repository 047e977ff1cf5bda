"""The console in a real browser: every page, every action, by keyboard, on a narrow screen, with hostile stored text."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

import psycopg
import pytest
from playwright.sync_api import Browser, Page, expect

from calmem import Memory
from calmem.settings import Settings
from tests.support.browser import chromium
from tests.support.console import BREAKER, KEY, LATER, SCRIPT, SESSION, USER, Console, console, fill, page
from tests.support.rows import rows


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def served(settings: Settings) -> Iterator[Console]:
    fill(settings)
    with console(settings) as opened:
        yield opened


def url(served: Console, path: str, **query: object) -> str:
    return served.url + path + (f"?{urlencode(query)}" if query else "")


def ask(opened: Page, query: str, *, fill_percent: int = 30) -> None:
    opened.get_by_label("Query").fill(query)
    opened.get_by_label("Fill ratio").fill(str(fill_percent))
    opened.get_by_role("button", name="Recall").click()


def test_every_page_shows_what_is_stored_as_text(served: Console, browser: Browser) -> None:
    """At both widths; a script that ran would change the title, a page too wide would scroll sideways."""
    shown = {
        url(served, "/"): ["Pending", "Oldest pending", "Failed"],
        url(served, "/users"): [USER, "ben"],
        url(served, "/user", user=USER): [USER, SESSION, LATER],
        url(served, "/session", user=USER, session=SESSION): [SESSION, SCRIPT, BREAKER],
        url(served, "/facts", user=USER): [KEY, BREAKER],
        url(served, "/fact", user=USER, session=SESSION, key=KEY): [KEY, BREAKER, "no nuts"],
        url(served, "/failed"): ["m-failed", SCRIPT, USER],
        url(served, "/delete", kind="user", user=USER): [USER, "cannot be brought back"],
        url(served, "/delete", kind="fact", user=USER, session=SESSION, key=KEY): [KEY],
        url(served, "/nowhere"): ["Not Found"],
    }
    for width in (1280, 360):
        with page(browser, width=width) as opened:
            for address, texts in shown.items():
                opened.goto(address)
                for text in texts:
                    assert text in opened.locator("main").inner_text(), (address, text)
                assert opened.title() != "taken"
                assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth"), (address, width)
                assert opened.locator("main img, main script").count() == 0
    with page(browser) as opened:  # turns say where they stand
        opened.goto(url(served, "/session", user=USER, session=LATER))
        expect(opened.locator("#turn-1")).to_contain_text("failed")
        expect(opened.locator("#turn-2")).to_contain_text("waiting for its vector")
        opened.goto(url(served, "/session", user=USER, session=SESSION))
        expect(opened.locator("#turn-1")).to_contain_text("indexed")
        expect(opened.locator(".turns")).not_to_contain_text("compacted")
        opened.get_by_label("The model sees turns from number").fill("3")
        opened.keyboard.press("Enter")
        expect(opened.locator("#turn-2")).to_contain_text("compacted")
        expect(opened.locator("#turn-3")).to_contain_text("in the active context")


def test_the_playground_says_why_and_works_without_script(served: Console, browser: Browser) -> None:
    with page(browser) as opened:
        opened.goto(url(served, "/playground", user=USER))
        ask(opened, "Which database for the stock?")
        block = opened.locator("pre.block")
        expect(block).to_contain_text("We decided on SQLite")
        with Memory(settings=served.settings) as memory:
            same = memory.recall(
                user_id=USER,
                session_id="console-playground",
                query="Which database for the stock?",
                current_tokens=38_400,
                context_window_capacity=128_000,
            )
        assert block.inner_text() == same.block
        kept = opened.locator("tr.kept")
        assert kept.count() == len(same.items)
        expect(kept.first).to_contain_text("in the block")
        expect(kept.first).to_contain_text("bm25")
        expect(opened.locator("tr.dropped").first).to_contain_text("dropped: ")
        expect(opened.locator(".tiles")).to_contain_text(f"{same.tokens} of 1200 tokens")
        assert opened.title() != "taken"

        ask(opened, "Which database for the stock?", fill_percent=70)
        expect(opened.locator(".tiles")).to_contain_text("minimal")
        ask(opened, "Which database for the stock?", fill_percent=80)
        expect(opened.locator(".tiles")).to_contain_text("facts only")
        expect(opened.locator("main")).to_contain_text("at this tier nothing is searched")
        ask(opened, "Explain the offside rule in football")
        expect(opened.locator("tr.kept")).to_have_count(0)
        expect(opened.locator("tr.dropped").first).to_contain_text("not about this user's memory")

        opened.get_by_text("More", exact=True).click()
        opened.get_by_label("Context window").fill("many")
        opened.get_by_role("button", name="Recall").click()
        expect(opened.get_by_role("alert")).to_contain_text("capacity: must be a whole number")
    with page(browser) as opened:
        opened.goto(url(served, "/playground", user=USER))
        opened.get_by_label("Fill ratio").focus()
        for _ in range(30):
            opened.keyboard.press("ArrowRight")
        expect(opened.locator("output")).to_have_text("60 % (reduced)")
    with page(browser, script=False, width=360) as opened:
        opened.goto(url(served, "/playground", user=USER))
        ask(opened, "Which database for the stock?", fill_percent=65)
        expect(opened.locator(".tiles")).to_contain_text("reduced")
        expect(opened.locator("output")).to_have_text("65 %")
        expect(opened.locator("pre.block")).to_contain_text("SQLite")


def test_retrying_forgetting_and_the_off_switch(served: Console, browser: Browser) -> None:
    with page(browser) as opened:
        opened.goto(url(served, "/failed"))
        opened.get_by_role("button", name="Retry m-failed").click()
        expect(opened.get_by_role("status")).to_contain_text("1 message will be tried again")
        expect(opened.locator("main")).to_contain_text("None.")
        with psycopg.connect(served.settings.database_url) as conn:
            left = conn.execute("SELECT count(*) FROM index_tasks WHERE failed_at IS NOT NULL").fetchone()
            assert left == (0,)
            conn.execute("UPDATE index_tasks SET failed_at = now(), error = 'again'")
        opened.goto(url(served, "/failed"))
        opened.get_by_role("button", name="Retry all").click()
        expect(opened.get_by_role("status")).to_contain_text("2 messages will be tried again")

        opened.goto(url(served, "/session", user=USER, session=SESSION))
        opened.get_by_role("link", name="Forget turn 5").click()
        opened.get_by_role("button", name="Forget").click()
        expect(opened.locator("main")).to_contain_text("Removed")
        assert rows(served.settings)["messages"] == 7

        opened.goto(url(served, "/fact", user=USER, session=SESSION, key=KEY))
        opened.get_by_role("link", name="Forget fact").click()
        opened.get_by_role("button", name="Forget").click()
        expect(opened.locator("main")).to_contain_text("Removed")
        assert rows(served.settings)["facts"] == 0

        opened.goto(url(served, "/user", user="ben"))
        opened.get_by_role("button", name="Switch memory off").click()
        expect(opened.locator("main")).to_contain_text("Memory is off")
        opened.goto(url(served, "/playground", user="ben"))
        ask(opened, "What does Ben like?")
        expect(opened.locator("main")).to_contain_text("memory is off")
        opened.goto(url(served, "/user", user="ben"))
        opened.get_by_role("button", name="Switch memory on").click()
        expect(opened.locator("main")).to_contain_text("Memory is on")


def test_deleting_asks_for_the_id_by_keyboard_alone(served: Console, browser: Browser) -> None:
    with page(browser, width=360) as opened:
        opened.goto(url(served, "/user", user="ben"))
        opened.keyboard.press("Tab")
        assert opened.evaluate("document.activeElement.textContent") == "Skip to content"
        opened.keyboard.press("Enter")
        reach(opened, "Delete user …")
        opened.keyboard.press("Enter")
        opened.get_by_label("to confirm").focus()
        opened.keyboard.type("Ben")
        opened.keyboard.press("Enter")
        expect(opened.get_by_role("alert")).to_contain_text("Nothing was removed")
        assert rows(served.settings)["users"] == 2
        opened.get_by_label("to confirm").focus()
        opened.keyboard.type("ben")
        opened.keyboard.press("Enter")
        expect(opened.locator("main")).to_contain_text("Removed")
        assert rows(served.settings)["users"] == 1

        opened.goto(url(served, "/session", user=USER, session=SESSION))
        reach(opened, "Delete session …")
        opened.keyboard.press("Enter")
        opened.get_by_label("to confirm").fill(SESSION)
        opened.keyboard.press("Enter")
        expect(opened.locator("main")).to_contain_text("Removed")
        left = rows(served.settings)
        assert (left["sessions"], left["messages"], left["facts"]) == (1, 2, 0)


def reach(opened: Page, name: str) -> None:
    """Tab until what is focused has this text."""
    for _ in range(60):
        opened.keyboard.press("Tab")
        if opened.evaluate("document.activeElement.textContent").strip() == name:
            return
    raise AssertionError(f"{name!r} is not reached by the keyboard")
