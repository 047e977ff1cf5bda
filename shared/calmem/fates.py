"""A recall explained: what became of its candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from calmem.model import Budget, Item, Recall, Tier


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


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """What a recall considered: with its score when it was ranked, and what becomes of it at each tier that searches."""

    item: Item
    fates: Mapping[Tier, Fate]


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A recall, and how it came about.

    `candidates`: the ranked ones, best first, then what was dropped before ranking; none when nothing was searched.
    `hidden`: how many chunks of the active context were left out of the search.
    """

    recall: Recall
    limits: Budget
    candidates: Sequence[Candidate]
    hidden: int
