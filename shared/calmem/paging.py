"""Pages of a list: how long one may be, the cursor of the next, and all of them. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import TypeVar

from calmem.errors import InvalidInput

T = TypeVar("T")

PAGE = 100
MAX_PAGE = 1_000


def check(cursor: str | None, limit: int) -> tuple[int, int]:
    """(the last place already shown, the limit). Raises InvalidInput for a cursor that no page gave, or a limit out of range."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_PAGE:
        raise InvalidInput("limit", f"must be a whole number from 1 to {MAX_PAGE}")
    if cursor is None:
        return 0, limit
    try:
        after = int.from_bytes(base64.b16decode(cursor), "big")
    except (ValueError, binascii.Error, TypeError) as exc:
        raise InvalidInput("cursor", "must be the `next_cursor` of an earlier page") from exc
    if after >= 2**63:
        raise InvalidInput("cursor", "must be the `next_cursor` of an earlier page")
    return after, limit


def cut(rows: Sequence[T], limit: int, place: Callable[[T], int]) -> tuple[list[T], str | None]:
    """The page of `limit` rows, of which one more was asked for, and the cursor behind the last one's place or None."""
    shown = list(rows[:limit])
    return shown, _cursor(place(shown[-1])) if len(rows) > limit else None


def collect(page: Callable[[str | None], tuple[list[T], str | None]]) -> list[T]:
    """What is on all pages, each asked for by the cursor of the one before (None: the first)."""
    found, cursor = page(None)
    while cursor is not None:
        more, cursor = page(cursor)
        found += more
    return found


def _cursor(after: int) -> str:
    return base64.b16encode(after.to_bytes(8, "big")).decode("ascii")
