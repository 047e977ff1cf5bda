"""Facts, the off switch, time zones and deletion, through each of the four doors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from calmem.errors import InvalidInput, NotFound
from calmem.memory import Memory
from calmem.model import Tier
from calmem.settings import Settings
from tests.support.doors import DOORS, door
from tests.support.rows import TABLES, rows


@pytest.fixture(params=DOORS)
def memory(request: pytest.FixtureRequest, settings: Settings) -> Iterator[Memory]:
    with door(request.param, settings) as opened:
        yield opened


def remember(memory: Memory, key: str, value: str, **fields: Any) -> None:
    memory.remember_fact(**{"user_id": "ada", "session_id": "s1", "key": key, "value": value, **fields})


def recall(memory: Memory, **fields: Any) -> Any:
    request = {"user_id": "ada", "session_id": "s1", "query": "", "current_tokens": 0}
    return memory.recall(**{**request, "context_window_capacity": 1000, **fields})


def test_a_later_value_replaces_and_the_earlier_is_history(memory: Memory) -> None:
    remember(memory, "name", "Alice")
    remember(memory, "name", "Bob")

    assert [(fact.key, fact.value) for fact in memory.recall_facts(user_id="ada")] == [("name", "Bob")]
    assert [v.value for v in memory.fact_history(user_id="ada", session_id="s1", key="name")] == ["Alice"]
    block = recall(memory).block
    assert "Bob" in block
    assert "Alice" not in block


def test_ten_writers_of_one_key_leave_one_value_and_nine_versions(memory: Memory, settings: Settings) -> None:
    with ThreadPoolExecutor(10) as threads:
        list(threads.map(lambda n: remember(memory, "colour", f"value {n}"), range(10)))

    counts = rows(settings)
    assert (counts["facts"], counts["fact_versions"]) == (1, 9)
    current = memory.recall_facts(user_id="ada")[0].value
    earlier = {v.value for v in memory.fact_history(user_id="ada", session_id="s1", key="colour")}
    assert earlier | {current} == {f"value {n}" for n in range(10)}


def test_patterns_are_globs_and_nothing_else(memory: Memory) -> None:
    for key in ("a_b", "axb", "a%", "app.db.host", "app.db.port"):
        remember(memory, key, "v")

    def keys(pattern: str) -> list[str]:
        return sorted(fact.key for fact in memory.recall_facts(user_id="ada", pattern=pattern))

    assert keys("a_b") == ["a_b"]
    assert keys("a%") == ["a%"]
    assert keys("app.db.*") == ["app.db.host", "app.db.port"]
    assert keys("a?b") == ["a_b", "axb"]


def test_facts_of_other_sessions_come_only_when_asked_for(memory: Memory) -> None:
    remember(memory, "drink", "tea", session_id="s1")
    remember(memory, "pet", "cat", session_id="s2", category="home")

    assert [fact.key for fact in recall(memory).facts] == ["drink"]
    assert {fact.key for fact in memory.recall_facts(user_id="ada")} == {"drink", "pet"}
    assert [fact.key for fact in memory.recall_facts(user_id="ada", category="home")] == ["pet"]
    assert [fact.key for fact in memory.recall_facts(user_id="ada", session_id="s1")] == ["drink"]


def test_expired_facts_are_neither_injected_nor_returned(memory: Memory) -> None:
    remember(memory, "otp", "123", expires_at=datetime.now(UTC) - timedelta(seconds=1))
    remember(memory, "plan", "gold", expires_at=datetime.now(UTC) + timedelta(days=1))

    assert [fact.key for fact in memory.recall_facts(user_id="ada")] == ["plan"]
    assert [fact.key for fact in recall(memory).facts] == ["plan"]


def test_facts_are_in_the_block_at_every_tier(memory: Memory) -> None:
    remember(memory, "drink", "oolong tea")
    blocks = {current: recall(memory, current_tokens=current).block for current in (0, 600, 700, 800, 1500)}
    assert [current for current, block in blocks.items() if "oolong tea" not in block] == []


def test_three_hundred_facts_stay_inside_the_budget(memory: Memory) -> None:
    for number in range(300):
        remember(memory, f"key{number:03}", "x" * 200)

    answer = recall(memory, current_tokens=850)

    assert answer.tier is Tier.FACTS_ONLY
    assert answer.tokens <= 300
    kept = [number for number in range(300) if f"key{number:03}" in answer.block]
    assert kept == list(range(300 - len(kept), 300))
    assert kept
    assert str(300 - len(kept)) in answer.block


def test_forgetting_what_is_not_there_says_so(memory: Memory) -> None:
    remember(memory, "name", "Bob")
    assert memory.forget_fact(user_id="ada", session_id="s1", key="name").removed == {"facts": 1}
    with pytest.raises(NotFound):
        memory.forget_fact(user_id="ada", session_id="s1", key="name")
    with pytest.raises(NotFound):
        memory.forget_fact(user_id="nobody", session_id="s1", key="name")


def test_a_fact_cannot_be_moved_to_another_user(memory: Memory) -> None:
    remember(memory, "name", "Bob")
    with pytest.raises(TypeError):
        memory.remember_fact(user_id="ada", session_id="s1", key="name", value="x", owner="eve")  # type: ignore[call-arg]  # the point
    assert memory.recall_facts(user_id="eve") == []
    assert [fact.value for fact in memory.recall_facts(user_id="ada")] == ["Bob"]


def test_nobody_and_everybody_are_not_users(memory: Memory) -> None:
    def calls(user_id: Any) -> list[Callable[[], object]]:
        return [
            lambda: recall(memory, user_id=user_id),
            lambda: memory.search(user_id=user_id, query="x"),
            lambda: memory.recall_facts(user_id=user_id),
            lambda: memory.forget_fact(user_id=user_id, session_id="s1", key="name"),
            lambda: memory.remember_fact(user_id=user_id, session_id="s1", key="a", value="b"),
            lambda: memory.delete_user(user_id),
            lambda: memory.sessions(user_id),
        ]

    remember(memory, "name", "Bob")
    for nobody in (None, "", "*", "%", ["ada"]):
        for call in calls(nobody):
            with pytest.raises(InvalidInput, match="user_id"):
                call()
    assert len(memory.recall_facts(user_id="ada")) == 1


def test_memory_off_writes_nothing_and_gives_an_empty_block(memory: Memory, settings: Settings) -> None:
    memory.record(user_id="ada", session_id="s1", role="user", content="The gate is green.")
    remember(memory, "drink", "tea")
    memory.put_user("ada", memory="off")
    before = rows(settings)

    answer = memory.record(user_id="ada", session_id="s1", role="user", content="not kept")
    assert (answer.stored, answer.seq) == (False, None)
    assert memory.remember_fact(user_id="ada", session_id="s1", key="a", value="b") is None
    empty = recall(memory, query="gate")
    assert (empty.block, empty.tokens, empty.tier, empty.items, empty.facts) == ("", 0, Tier.OFF, [], [])
    assert memory.search(user_id="ada", query="gate") == []
    assert memory.recall_facts(user_id="ada") == []
    assert rows(settings) == before

    memory.put_user("ada", memory="on")
    assert "green" in recall(memory, query="gate").block


def test_a_time_zone_that_does_not_exist_is_refused(memory: Memory) -> None:
    assert memory.put_user("ada", time_zone="Asia/Shanghai").time_zone == "Asia/Shanghai"
    for zone in ("Mars/Olympus", "", "../etc/passwd", "asia shanghai"):
        with pytest.raises(InvalidInput, match="time_zone"):
            memory.put_user("ada", time_zone=zone)
    assert memory.get_user("ada").time_zone == "Asia/Shanghai"
    with pytest.raises(InvalidInput, match="memory"):
        memory.put_user("ada", memory="maybe")


def test_deleting_a_user_counts_and_leaves_the_others(memory: Memory, settings: Settings) -> None:
    for number in range(150):
        remember(memory, f"k{number}", "v", session_id=f"a{number % 3}")
    memory.record_many(
        [{"user_id": "ada", "session_id": f"a{n % 3}", "role": "user", "content": f"turn {n}"} for n in range(150)]
    )
    memory.record_many(
        [{"user_id": "bob", "session_id": "b", "role": "user", "content": f"turn {n}"} for n in range(10)]
    )

    removed = memory.delete_user("ada").removed

    assert (removed["messages"], removed["facts"], removed["sessions"]) == (150, 150, 3)
    assert rows(settings) == {
        **dict.fromkeys(TABLES, 0),
        "users": 1,
        "sessions": 1,
        "messages": 10,
        "chunks": 10,
        "index_tasks": 10,
    }
    with pytest.raises(NotFound):
        memory.delete_user("ada")


def test_deleting_a_session_and_a_message(memory: Memory, settings: Settings) -> None:
    kept = memory.record(user_id="ada", session_id="s1", role="user", content="The gate is green.")
    gone = memory.record(user_id="ada", session_id="s1", role="user", content="The fence is blue.")
    memory.record(user_id="ada", session_id="s2", role="user", content="The roof is red.")
    remember(memory, "roof", "red", session_id="s2")

    assert memory.delete_message("ada", gone.message_id).removed["messages"] == 1
    with pytest.raises(NotFound):
        memory.delete_message("ada", gone.message_id)
    with pytest.raises(NotFound):
        memory.delete_message("bob", kept.message_id)
    removed = memory.delete_session("ada", "s2").removed
    assert (removed["messages"], removed["facts"], removed["sessions"]) == (1, 1, 1)
    assert memory.search(user_id="ada", query="fence blue roof red") == []
    assert rows(settings)["messages"] == 1
