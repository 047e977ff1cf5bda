"""Two hundred callers share four connections, and some of them go away half way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import httpx
import psycopg
import pytest

from calmem.memory import AsyncMemory, Memory
from calmem.settings import Settings
from calmem_services.retrieval.app import create_app
from tests.support.http import client
from tests.support.processes import eventually

CALLERS, CONNECTIONS = 200, 4
REQUEST: dict[str, Any] = {
    "user_id": "ada",
    "session_id": "now",
    "query": "roses",
    "current_tokens": 0,
    "context_window_capacity": 1000,
}


@pytest.fixture
def small(settings: Settings) -> Settings:
    """Settings with four connections, and something to find."""
    with Memory(settings=settings) as memory:
        memory.record(user_id="ada", session_id="old", role="user", content="The roses by the gate flower again.")
    return replace(settings, pool_size=CONNECTIONS, pool_wait_seconds=60.0, recall_deadline_ms=120_000)


async def crowd(call: Callable[[], Awaitable[Any]]) -> list[Any]:
    """All call at once; when some have been answered, every third of the others is cancelled. The answers."""
    tasks = [asyncio.ensure_future(call()) for _ in range(CALLERS)]
    while sum(task.done() for task in tasks) < 20:
        await asyncio.wait([task for task in tasks if not task.done()], return_when=asyncio.FIRST_COMPLETED)
    gone = [task for task in tasks[::3] if task.cancel()]
    assert len(gone) > 20, "nearly all were answered before any could go away"
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(result, asyncio.CancelledError) for result in results) == len(gone)
    return [result for result in results if not isinstance(result, asyncio.CancelledError)]


def connections(settings: Settings) -> list[str]:
    """The state of each connection that calmem holds open."""
    with psycopg.connect(settings.database_url) as conn:
        rows = conn.execute(
            "SELECT state FROM pg_stat_activity WHERE application_name = 'calmem' AND datname = current_database()"
        ).fetchall()
    return [str(state) for (state,) in rows]


def assert_pool_is_full_again(settings: Settings) -> None:
    eventually(lambda: set(connections(settings)) == {"idle"}, "every connection is idle again")
    assert len(connections(settings)) <= CONNECTIONS


def test_clients_of_the_service_that_go_away(small: Settings) -> None:
    with client(create_app(small)) as retrieval:

        async def run() -> list[Any]:
            limits = httpx.Limits(max_connections=CALLERS)
            async with httpx.AsyncClient(base_url=retrieval.base_url, timeout=120, limits=limits) as many:
                return await crowd(lambda: many.post("/v1/recall", json=REQUEST))

        answers = asyncio.run(run())
        assert {answer.status_code for answer in answers} == {200}
        assert {answer.json()["degraded"] for answer in answers} == {None}
        assert all("roses" in answer.json()["block"] for answer in answers)
        assert_pool_is_full_again(small)
        for _ in range(2 * CONNECTIONS):
            assert "roses" in retrieval.post("/v1/recall", json=REQUEST).json()["block"]
        assert_pool_is_full_again(small)


def test_tasks_of_the_host_that_are_cancelled(small: Settings) -> None:
    async def run() -> None:
        async with AsyncMemory(settings=small) as memory:
            found = await crowd(lambda: memory.recall(**REQUEST))
            assert {one.degraded for one in found} == {None}
            assert all("roses" in one.block for one in found)
            await asyncio.to_thread(assert_pool_is_full_again, small)
            for _ in range(2 * CONNECTIONS):
                assert "roses" in (await memory.recall(**REQUEST)).block

    asyncio.run(run())
    eventually(lambda: connections(small) == [], "closed with the memory")
