"""Whose turn it is when more requests wait than a service works on at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

# So many turns in a row go to the newest who can still be in time, then one to each of the others. More would leave those
# whose time is over waiting longer than anybody does (docs/operating.md, Overload and outages).
TIMELY_IN_A_ROW = 2

_Line = dict[asyncio.Future[None], float]  # in order of arrival; until when its turn is in time


class Turns:
    """So many at once, all others wait. For the event loop's thread only.

    Who gives no time is served first come, first served. Among those with a time the newest goes first: under overload the
    oldest is served when its time is nearly over, and so would be all behind it. Whoever's time is over is served
    first come, first served too, so that nobody waits for ever. When several kinds wait they take turns.
    """

    def __init__(self, count: int, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._free = count
        self._clock = clock
        self._timely: _Line = {}
        self._late: _Line = {}
        self._in_order: _Line = {}
        self._given = 0

    @property
    def all_taken(self) -> bool:
        return self._free == 0

    async def take(self, *, in_time_until: float | None = None) -> None:
        """Wait for a turn. `in_time_until`, by the clock: a turn after it is too late to do all that is asked."""
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        line = self._in_order if in_time_until is None else self._timely
        line[turn] = 0.0 if in_time_until is None else in_time_until
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back()  # it came at the same moment
            for one in (self._timely, self._late, self._in_order):
                one.pop(turn, None)
            raise

    def give_back(self) -> None:
        """The turn goes to the next one who waits."""
        turn = self._next()
        if turn is None:
            self._free += 1
        else:
            turn.set_result(None)

    def _next(self) -> asyncio.Future[None] | None:
        for line in (self._timely, self._late, self._in_order):
            for turn in [turn for turn in line if turn.done()]:
                del line[turn]  # went away, and has not noticed yet
        now = self._clock()
        for turn in [turn for turn, until in self._timely.items() if until < now]:
            self._late[turn] = self._timely.pop(turn)
        order = [*[self._timely] * TIMELY_IN_A_ROW, self._in_order, self._late]
        for place in range(self._given, self._given + len(order)):
            line = order[place % len(order)]
            if line:
                self._given = place % len(order) + 1
                turn = next(reversed(line)) if line is self._timely else next(iter(line))
                del line[turn]
                return turn
        return None
