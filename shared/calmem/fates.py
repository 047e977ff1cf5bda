"""What becomes of the candidates of a recall."""

from __future__ import annotations

from enum import StrEnum


class Fate(StrEnum):
    """What became of a candidate of a recall, and why."""

    WHOLE = "whole"
    SHORTENED = "shortened"
    MERGED = "merged"
    NO_ROOM = "no_room"
    BEYOND_K = "beyond_k"
    ENDED = "ended"
    LOW_COSINE = "low_cosine"
    NOT_BEST = "not_best"
    NOT_ABOUT = "not_about"
    OUT_OF_SIGHT = "out_of_sight"

    @property
    def kept(self) -> bool:
        """Whether its text is in the block."""
        return self in (Fate.WHOLE, Fate.SHORTENED, Fate.MERGED)

    @property
    def meaning(self) -> str:
        return _FATES[self]


_FATES = {
    Fate.WHOLE: "in the block",
    Fate.SHORTENED: "in the block, its beginning only: no room for more",
    Fate.MERGED: "in the block, as one with the piece of the same message beside it",
    Fate.NO_ROOM: "dropped: no room left in the budget",
    Fate.BEYOND_K: "dropped: more items than asked for (k)",
    Fate.ENDED: "dropped: packing had ended, too many before it did not fit",
    Fate.LOW_COSINE: "dropped: found by meaning alone, and less similar than the threshold",
    Fate.NOT_BEST: "dropped: not among the best that are loaded",
    Fate.NOT_ABOUT: "dropped: the query is not about this user's memory",
    Fate.OUT_OF_SIGHT: "dropped: in the active context or gone by the time it was loaded",
}
