"""The list of messages that were set aside, page by page."""

from __future__ import annotations

import re
from html import unescape

import psycopg
import pytest

from calmem import paging
from calmem.errors import InvalidInput
from calmem.failures import Failures
from calmem.memory import Memory
from calmem.queueing import WakeUps
from calmem.settings import Settings
from calmem.storage.pool import Database
from calmem_services.console.reading import PAGE
from tests.support.console import console
from tests.support.rows import record_lines


@pytest.fixture
def failures(database: Database) -> Failures:
    return Failures(database, WakeUps(""))


def fail(settings: Settings, count: int, *, user: str = "ada") -> list[str]:
    """Messages of the user, set aside three at a moment; their ids in the order of the list."""
    with Memory(settings=settings) as memory:
        ids = record_lines(memory, (f"Note {n}." for n in range(count)), user=user)
    with psycopg.connect(settings.database_url) as conn:
        for place, message_id in enumerate(ids):
            conn.execute(
                "UPDATE index_tasks t SET attempts = 5, error = 'no', failed_at = to_timestamp(%s) + '1 microsecond'"
                " FROM messages m WHERE m.message_id = %s AND t.message_no = m.message_no",
                (1_790_000_000 + place // 3, message_id),
            )
    return ids


def test_pages_go_on_where_the_last_one_ended(settings: Settings, failures: Failures) -> None:
    ids = fail(settings, 10)
    first, cursor = failures.page(limit=4)
    assert [one.message_id for one in first] == ids[:4]
    for one in first:
        failures.retry(one.message_id)
    second, cursor = failures.page(cursor=cursor, limit=4)
    assert [one.message_id for one in second] == ids[4:8], "those that left the list took no other with them"
    third, end = failures.page(cursor=cursor, limit=4)
    assert ([one.message_id for one in third], end) == (ids[8:], None)


def test_a_message_that_failed_in_two_indexes_may_be_on_two_pages(settings: Settings, failures: Failures) -> None:
    (message_id,) = fail(settings, 1)
    with psycopg.connect(settings.database_url) as conn:
        conn.execute(
            "INSERT INTO search_indexes (state, model, chunk_chars, overlap_chars)"
            " SELECT 'kept', model, chunk_chars, overlap_chars FROM search_indexes"
        )
        conn.execute(
            "INSERT INTO index_tasks (user_no, message_no, index_no, lane, attempts, error, failed_at)"
            " SELECT user_no, message_no, (SELECT max(index_no) FROM search_indexes), lane, attempts, error, failed_at"
            " FROM index_tasks"
        )
    found = paging.collect(lambda cursor: failures.page(cursor=cursor, limit=1))
    assert [(one.message_id, one.index_no) for one in found] == [(message_id, 1), (message_id, 2)]


def test_pages_of_one_user_hold_nobody_elses(settings: Settings, failures: Failures) -> None:
    own = fail(settings, 5)
    fail(settings, 5, user="bob")
    found = paging.collect(lambda cursor: failures.page(cursor=cursor, limit=2, user_id="ada"))
    assert [one.message_id for one in found] == own


@pytest.mark.parametrize("cursor", ["", "x", "00" * 8, "00" * 32, "FF" * 24, "7F" + "FF" * 7 + "00" * 16])
def test_a_cursor_of_no_page_is_refused(failures: Failures, cursor: str) -> None:
    with pytest.raises(InvalidInput, match="cursor"):
        failures.page(cursor=cursor, limit=10)


def test_the_console_leads_from_page_to_page(settings: Settings) -> None:
    with console(settings) as served:
        visitor = served.http
        ids = fail(settings, PAGE + 20)
        first = visitor.get("/failed").text
        assert "First page" not in first
        (following,) = re.findall(r'<a href="([^"]+)" rel="next">', first)
        second = visitor.get(unescape(following)).text
        assert "First page" in second
        assert "Next page" not in second
        assert [[one in page for one in ids] for page in (first, second)] == [
            [True] * PAGE + [False] * 20,
            [False] * PAGE + [True] * 20,
        ]
        assert visitor.get("/failed", params={"cursor": "x"}).status_code == 422
