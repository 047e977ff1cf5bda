"""Whose turn it is: by a clock that only the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from calmem_services.http.turns import TIMELY_IN_A_ROW, Turns


class Hall:
    """One turn, taken; whoever enters waits. Names in the order in which they got it, and when."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns = Turns(1, clock=lambda: self.now)
        self.served: dict[str, float] = {}
        self.waiting: dict[str, asyncio.Task[None]] = {}

    async def enter(self, name: str, *, in_time_until: float | None = None) -> None:
        async def wait() -> None:
            await self.turns.take(in_time_until=in_time_until)
            self.served[name] = self.now

        self.waiting[name] = asyncio.create_task(wait())
        await _settle()

    async def leave(self) -> None:
        self.turns.give_back()
        await _settle()

    async def empty(self) -> list[str]:
        while not all(task.done() for task in self.waiting.values()):
            await self.leave()
        return [name for name in self.served if name != "first"]


async def _settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def in_a_hall(story: Callable[[Hall], Coroutine[Any, Any, None]]) -> None:
    async def play() -> None:
        hall = Hall()
        await hall.enter("first")
        await story(hall)
        await hall.leave()
        assert not hall.turns.all_taken, "every turn came back"

    asyncio.run(play())


def test_without_a_time_first_come_first_served() -> None:
    async def story(hall: Hall) -> None:
        for name in "abcd":
            await hall.enter(name)
        assert await hall.empty() == ["a", "b", "c", "d"]

    in_a_hall(story)


def test_the_newest_who_is_in_time_goes_first_and_one_late_after_two() -> None:
    async def story(hall: Hall) -> None:
        for name in "abcd":
            await hall.enter(name, in_time_until=10.0)
        hall.now = 11.0
        for name in "vwxyz":
            await hall.enter(name, in_time_until=20.0)
        assert TIMELY_IN_A_ROW == 2
        assert await hall.empty() == ["z", "y", "a", "x", "w", "b", "v", "c", "d"]

    in_a_hall(story)


def test_those_without_a_time_wait_for_no_queue_of_late_ones() -> None:
    async def story(hall: Hall) -> None:
        for number in range(50):
            await hall.enter(f"late {number}", in_time_until=1.0)
        hall.now = 2.0
        for name in ("fact a", "fact b"):
            await hall.enter(name)
        await hall.enter("new", in_time_until=3.0)
        order = await hall.empty()
        assert order.index("fact a") <= 2
        assert order.index("fact a") < order.index("fact b") <= 4
        assert order[-1] == "late 49"

    in_a_hall(story)


def test_whoever_goes_away_passes_the_turn_on() -> None:
    async def story(hall: Hall) -> None:
        for name in "abc":
            await hall.enter(name)
        hall.waiting["a"].cancel()
        hall.turns.give_back()  # it is b's, since a is about to notice, and b has not noticed yet
        hall.waiting["b"].cancel()
        await _settle()
        assert [name for name in hall.served if name != "first"] == ["c"]
        assert hall.waiting["b"].cancelled()

    in_a_hall(story)


def test_under_overload_two_of_three_turns_are_in_time() -> None:
    """Requests come five times as fast as they can be served, each in time for 150 ms; a turn takes 50 ms, in time or not."""

    async def story(hall: Hall) -> None:
        in_time = 0
        for step in range(500):  # of 10 ms
            hall.now = step * 0.01
            await hall.enter(f"{step}", in_time_until=hall.now + 0.15)
            if step % 5 == 4:
                before = set(hall.served)
                await hall.leave()
                (name,) = set(hall.served) - before
                in_time += hall.now - int(name) * 0.01 <= 0.15
        assert in_time >= 66, "of 100 turns"
        # First come, first served, all but the first few have waited for longer than that.
        assert len(await hall.empty()) == 500, "and everybody gets one in the end"

    in_a_hall(story)
