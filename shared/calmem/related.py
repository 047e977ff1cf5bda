"""Which texts share what the best ones say beyond the query: answers in two steps. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from calmem import words


def shares(texts: Sequence[str], query: str, trust: Sequence[float]) -> list[float]:
    """For each text, best first, the largest share it has of what one of the best others says beyond the query, 0 to 1.

    `trust`: how much each of the best is to be trusted, 0 to 1. By pairs of characters, the rare ones among these texts
    counting more: who has the address that the query names is told in one message, and what he does in another.
    """
    asked = words.content_pairs(query)
    found = [0.0] * len(texts)
    for seed, weight in zip(range(len(texts)), trust, strict=False):
        having = {
            pair: [no for no, text in enumerate(texts) if pair in text]
            for pair in sorted(words.content_pairs(texts[seed]) - asked)
        }
        held = [0.0] * len(texts)
        mass = 0.0
        for numbers in having.values():
            rarity = log(1 + (len(texts) + 1 - len(numbers)) / (len(numbers) + 0.5))
            mass += rarity
            for no in numbers:
                held[no] += rarity
        for no, one in enumerate(held):
            if mass and no != seed:
                found[no] = max(found[no], weight * one / mass)
    return found
