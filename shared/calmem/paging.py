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
# Of one number of a cursor's key.
_PART_BYTES = 8


def check(cursor: str | None, limit: int) -> tuple[int, int]:
    """(the last place already shown, the limit). Raises InvalidInput for a cursor that no page gave, or a limit out of range."""
    (after,), limit = check_key(cursor, limit, parts=1)
    return after, limit


def check_key(cursor: str | None, limit: int, *, parts: int) -> tuple[tuple[int, ...], int]:
    """As `check`, of a list whose places are keys of so many whole numbers of 0 or more."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_PAGE:
        raise InvalidInput("limit", f"must be a whole number from 1 to {MAX_PAGE}")
    if cursor is None:
        return (0,) * parts, limit
    try:
        key = base64.b16decode(cursor)
    except (ValueError, binascii.Error, TypeError) as exc:
        raise foreign_cursor() from exc
    after = tuple(int.from_bytes(key[at : at + _PART_BYTES], "big") for at in range(0, len(key), _PART_BYTES))
    if len(key) != parts * _PART_BYTES or any(part >= 2**63 for part in after):
        raise foreign_cursor()
    return after, limit


def foreign_cursor() -> InvalidInput:
    """The error for a cursor that no page gave."""
    return InvalidInput("cursor", "must be the `next_cursor` of an earlier page")


def cut(rows: Sequence[T], limit: int, place: Callable[[T], int | tuple[int, ...]]) -> tuple[list[T], str | None]:
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


def _cursor(after: int | tuple[int, ...]) -> str:
    parts = (after,) if isinstance(after, int) else after
    return base64.b16encode(b"".join(part.to_bytes(_PART_BYTES, "big") for part in parts)).decode("ascii")
