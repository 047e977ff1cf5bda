"""The four ways into one memory: sync and async, to the servers directly and over the HTTP services."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

from calmem import AsyncMemory, Memory
from calmem.settings import Settings
from tests.support.http import Services, services

DOORS = ("direct", "http", "async direct", "async http")


class Blocking:
    """An `AsyncMemory` that a test calls like a `Memory`; each call has an event loop of its own."""

    def __init__(self, memory: AsyncMemory) -> None:
        self._memory = memory

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await getattr(self._memory, name)(*args, **kwargs)

        return lambda *args, **kwargs: asyncio.run(call(*args, **kwargs))


def over_http(opened: Services, **changes: Any) -> Settings:
    """Settings of a client on another machine: it knows the two addresses and nothing else."""
    addresses = {"ingest_url": str(opened.ingest.base_url), "retrieval_url": str(opened.retrieval.base_url)}
    return Settings(**{**addresses, "client_timeout_seconds": 60.0, **changes})


@contextmanager
def door(name: str, settings: Settings) -> Iterator[Memory]:
    """This one way into the memory of `settings`."""
    with ExitStack() as stack:
        if name.endswith("http"):
            settings = over_http(stack.enter_context(services(settings)))
        yield stack.enter_context(_opened(name, settings))


@contextmanager
def all_doors(settings: Settings) -> Iterator[dict[str, Memory]]:
    """All four at once, into the same memory, through the same two services."""
    with ExitStack() as stack:
        remote = over_http(stack.enter_context(services(settings)))
        opened: dict[str, Memory] = {}
        for name in DOORS:
            opened[name] = stack.enter_context(_opened(name, remote if name.endswith("http") else settings))
        yield opened


@contextmanager
def _opened(name: str, settings: Settings) -> Iterator[Memory]:
    if not name.startswith("async"):
        with Memory(settings=settings) as memory:
            yield memory
        return
    asynchronous = AsyncMemory(settings=settings)
    try:
        yield cast(Memory, Blocking(asynchronous))
    finally:
        asyncio.run(asynchronous.close())
