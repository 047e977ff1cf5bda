"""calmem: memory for conversational AI that outlives the context window and the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calmem.memory import AsyncMemory, Memory

__all__ = ["AsyncMemory", "Memory"]


def __getattr__(name: str) -> object:
    # On first use: a retrieval process imports calmem.recall and must not load the queue with it.
    if name in __all__:
        from calmem import memory

        return getattr(memory, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
