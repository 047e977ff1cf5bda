"""How many requests a service works on at once, and how many wait for their turn; all others are told to come again."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from anyio import to_thread
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from calmem import metrics
from calmem.errors import InvalidInput
from calmem.settings import Settings
from calmem_services.http import problems
from calmem_services.http.health import PATHS as HEALTH_PATHS

# Longest wait for a turn: later most clients have given up, and working for them would keep others waiting.
LONGEST_WAIT_SECONDS = 10.0
# So much of a body is read before the turn comes, so that nobody who sends slowly takes one.
_READ_AHEAD_BYTES = 65_536
# Threads beside those of the requests at work, for health and metrics.
_SPARE_THREADS = 8
_ARRIVED = "calmem.arrived"


class Admission:
    """Lets `max_concurrent_requests` in, keeps `max_waiting_requests` waiting in their order, and answers 503 with Retry-After
    to whoever comes beyond that or has waited for LONGEST_WAIT_SECONDS. Health and metrics are always let in.
    """

    def __init__(self, app: ASGIApp, *, settings: Settings) -> None:
        if settings.max_concurrent_requests < 1:
            raise InvalidInput("CALMEM_MAX_CONCURRENT_REQUESTS", "must be 1 or more")
        self._app = app
        self._turns = asyncio.Semaphore(settings.max_concurrent_requests)
        self._most_waiting = settings.max_waiting_requests
        self._waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in HEALTH_PATHS:
            await self._app(scope, receive, send)
            return
        body = _Body(receive, self._turns)
        if not await body.read_ahead():
            return
        scope[_ARRIVED] = time.perf_counter()
        refused = await self._enter()
        if refused is not None:
            metrics.OVERLOADED.labels(refused).inc()
            await problems.overloaded()(scope, receive, send)
            return
        metrics.REQUESTS_AT_WORK.inc()
        try:
            await self._app(scope, body.receive, send)
        finally:
            metrics.REQUESTS_AT_WORK.dec()
            self._turns.release()

    async def _enter(self) -> str | None:
        """Wait for a turn; the reason when there is none."""
        if self._turns.locked() and self._waiting >= self._most_waiting:
            return "full"
        self._waiting += 1
        metrics.REQUESTS_WAITING.inc()
        try:
            async with asyncio.timeout(LONGEST_WAIT_SECONDS):
                await self._turns.acquire()
        except TimeoutError:
            return "late"
        finally:
            self._waiting -= 1
            metrics.REQUESTS_WAITING.dec()
        return None


class _Body:
    """A request's body: its beginning read ahead, the rest read while another request has the turn."""

    def __init__(self, receive: Receive, turns: asyncio.Semaphore) -> None:
        self._receive = receive
        self._turns = turns
        self._ahead: deque[Message] = deque()
        self._complete = False

    async def read_ahead(self) -> bool:
        """False when the client went away instead."""
        size = 0
        while not self._complete and size < _READ_AHEAD_BYTES:
            message = await self._next()
            if message["type"] == "http.disconnect":
                return False
            size += len(message.get("body", b""))
            self._ahead.append(message)
        return True

    async def receive(self) -> Message:
        if self._ahead:
            return self._ahead.popleft()
        if self._complete:
            return await self._receive()
        self._turns.release()
        try:
            return await self._next()
        finally:
            await self._turns.acquire()

    async def _next(self) -> Message:
        message = await self._receive()
        self._complete = message["type"] != "http.request" or not message.get("more_body", False)
        return message


def arrived(scope: Mapping[str, Any]) -> float:
    """When this request had arrived, by time.perf_counter(): what it waited for its turn counts for its deadline."""
    return float(scope[_ARRIVED])


def provide_threads(settings: Settings) -> None:
    """Threads for every request at work and some more; called in the event loop of the service."""
    threads = to_thread.current_default_thread_limiter()
    threads.total_tokens = max(threads.total_tokens, settings.max_concurrent_requests + _SPARE_THREADS)
