"""Situations known to go wrong in memory layers, from the recording to the block, vectors included."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from calmem.errors import InvalidInput
from calmem.memory import Memory
from calmem.model import Recall
from calmem.models import Models
from calmem.queueing import WakeUps
from calmem.settings import Settings
from calmem.storage.pool import Database
from calmem.text import CLOSE_MARK, OPEN_MARK
from calmem_workers.index import Drainer

FRIDAY = datetime(2025, 6, 13, 12, tzinfo=UTC)


def index(settings: Settings) -> int:
    with Database(settings) as database:
        return Drainer(database, settings, Models(settings), WakeUps("")).drain()


def say(memory: Memory, content: Any, **fields: Any) -> str:
    message = {"user_id": "ada", "session_id": "old", "role": "user", "content": content, **fields}
    return memory.record(**message).message_id


def ask(memory: Memory, query: str, **fields: Any) -> Recall:
    request = {"user_id": "ada", "session_id": "now", "query": query, "current_tokens": 0, "now": FRIDAY}
    found = memory.recall(**{**request, "context_window_capacity": 1000, **fields})
    assert found.degraded is None
    return found


@pytest.mark.parametrize("query", ["what did I say about the garden last week", "上周我说了什么 garden"])
def test_last_week_is_neither_this_week_nor_long_ago(memory: Memory, settings: Settings, query: str) -> None:
    """Three days before Friday 13 June is Tuesday of the same week, nine days before is Wednesday of the week before."""
    for days in (3, 9, 60):
        when = (FRIDAY - timedelta(days=days)).isoformat()
        say(memory, f"The garden, {days} days before the question.", session_id=f"d{days}", created_at=when)
    index(settings)
    assert [item.session_id for item in ask(memory, query).items] == ["d9"]


def test_a_phrase_never_widens_what_the_host_asked_for(memory: Memory, settings: Settings) -> None:
    for days in (3, 9, 60):
        when = (FRIDAY - timedelta(days=days)).isoformat()
        say(memory, f"The garden, {days} days before the question.", session_id=f"d{days}", created_at=when)
    index(settings)
    since, until = FRIDAY - timedelta(days=10), FRIDAY - timedelta(days=5)
    for phrase in (
        "100,000 years ago",
        "two hundred days ago",
        "last year",
        "this year",
        "since last year",
        "上上上周",
    ):
        for arms in (("dense",), ("words",), ("dense", "words")):
            found = ask(memory, f"the garden {phrase}", since=since, until=until, arms=arms)
            assert {item.session_id for item in found.items} <= {"d9"}, (phrase, arms)
    assert {item.session_id for item in ask(memory, "the garden this year", since=since).items} == {"d3", "d9"}


def test_a_prompt_played_back_fifty_times_is_no_memory(memory: Memory, settings: Settings) -> None:
    """The host sends its whole prompt as the user's message; a worker has chunked and embedded every turn."""
    say(memory, "The gate code is 4711-zulu.")
    index(settings)
    prompt = ask(memory, "gate code", session_id="s2").block
    assert prompt.startswith(OPEN_MARK)
    assert prompt.endswith(CLOSE_MARK)
    for number in range(50):
        prompt = ask(memory, "gate code", session_id="s2", active_from_seq=1).block
        say(memory, f"{prompt}\nquestion number {number}", session_id="s2")
        if number % 10 == 9:
            assert index(settings) == 10

    with psycopg.connect(settings.database_url) as conn:
        assert conn.execute("SELECT count(*) FROM chunks").fetchone() == (51,)
        assert conn.execute("SELECT count(*) FROM vectors").fetchone() == (51,)
        longest = conn.execute("SELECT max(end_char - start_char) FROM chunks WHERE seq > 1").fetchone()
    assert longest is not None
    assert longest[0] <= len("\nquestion number 49")
    for arms in (("dense",), ("words",)):
        found = memory.search(user_id="ada", query="gate code zulu", k=100, arms=arms)
        assert [item.session_id for item in found] == ["old"], arms


def test_five_languages_beside_one_another(memory: Memory, settings: Settings) -> None:
    said = {
        "我们上个月搬到了深圳南山区": "深圳 南山",
        "来週、京都で友達と会います": "京都 友達",
        "주말에 부산으로 여행을 갔어요": "부산 여행",
        "ฉันชอบกินส้มตำกับข้าวเหนียว": "ส้มตำ ข้าวเหนียว",
        "اشتريت سيارة جديدة من الرياض": "سيارة الرياض",
    }
    ids = {text: say(memory, text, session_id=f"s{number}") for number, text in enumerate(said)}
    index(settings)
    for text, query in said.items():
        assert ask(memory, query).items[0].message_id == ids[text], query


def test_a_nul_and_halves_of_pairs_are_stored_indexed_and_found(memory: Memory, settings: Settings) -> None:
    first = say(memory, "Acme moved\x00 to Shenzhen.")
    second = say(memory, "cheers \ud83c and \udf78 to the Grundfos pump")
    third = say(
        memory, [{"type": "text", "text": "The valve"}, {"type": "image_url"}, {"type": "text", "text": "leaks."}]
    )
    assert index(settings) == 3
    assert ask(memory, "where did Acme move").items[0].message_id == first
    assert ask(memory, "Grundfos pump").items[0].message_id == second
    found = ask(memory, "which valve leaks").items[0]
    assert (found.message_id, found.text) == (third, "The valve\n[image]\nleaks.")


def test_ids_that_had_to_be_repaired_are_nobodys(memory: Memory, settings: Settings) -> None:
    for broken in ("ada\ud800", "ada\udfff", "ada\x00"):
        for field in ("user_id", "session_id", "message_id"):
            with pytest.raises(InvalidInput, match=field):
                say(memory, "x", **{field: broken})
    with psycopg.connect(settings.database_url) as conn:
        assert conn.execute("SELECT count(*) FROM users").fetchone() == (0,)
