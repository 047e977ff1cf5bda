"""From ranked items to the block that fits the budget. Pure and deterministic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log
from zoneinfo import ZoneInfo

import regex

from calmem import block, budget
from calmem.fates import Fate
from calmem.model import Block, Budget, Fact, Item, Style

# Evidence: how much likelier an item of score s is than one of score 0, as exp(EVIDENCE * s).
EVIDENCE = 12.0
# What an item costs beside its text: line end, speaker, a part of a header; in quarter tokens.
LINE_QUARTERS = 20
# An item that does not fit whole is cut if that many quarter tokens are left for it.
LEAST_EXCERPT = 160
# How many items may be passed over because they do not fit before packing ends.
MOST_SKIPPED = 20


@dataclass(frozen=True, kw_only=True)
class Packed:
    """The block, the items in it, best first, and by chunk_no what became of every item that was ranked."""

    block: Block
    items: Sequence[Item]
    fates: Mapping[int, Fate]


def fit(
    ranked: Sequence[Item],
    *,
    k: int | None,
    facts: Sequence[Fact],
    zone: ZoneInfo,
    limits: Budget,
    style: Style,
    new_user: bool,
) -> Packed:
    """The block of what fits, taken one by one.

    Without `k` they are taken by evidence per token, so that several short items go before a long one that says no
    more than each of them; with `k`, and when the latest come first, as they are ranked. Facts come first and are cut
    only at the whole block's limit. Pieces of one message that overlap or touch become one item. The frame counts.
    The items for a smaller `k` are the first of those for a larger one. Empty when not even the frame, or the note of
    facts left out, fits.
    """
    look = block.Look(style=style, zone=zone)
    whole = 4 * limits.block - block.frame_quarters(new_user=new_user, style=style)
    kept, left_out = block.fit_facts(facts, whole)
    used = block.facts_quarters(kept, left_out)
    if whole < used:
        nothing = Block(text="", tokens=0, facts_left_out=len(facts))
        return Packed(block=nothing, items=[], fates={item.chunk_no: Fate.NO_ROOM for item in ranked})
    room = min(whole - used, 4 * limits.episodes)
    place = {item.chunk_no: n for n, item in enumerate(ranked)}
    by_score = all(a.score >= b.score for a, b in pairwise(ranked))
    order = sorted(ranked, key=_per_token) if k is None and by_score else ranked
    taken, fates = _take(order, k, room, look)
    chosen = sorted(taken, key=lambda item: place[item.chunk_no])
    rendered = block.render(items=chosen, facts=kept, facts_left_out=left_out, look=look, new_user=new_user)
    return Packed(block=rendered, items=chosen, fates=fates)


def _per_token(item: Item) -> float:
    """Falls as the item's evidence per token rises: minus the logarithm of exp(EVIDENCE * score) / cost."""
    return log(budget.quarters(item.text) + LINE_QUARTERS) - EVIDENCE * item.score


def _take(ranked: Sequence[Item], k: int | None, room: int, look: block.Look) -> tuple[list[Item], Mapping[int, Fate]]:
    chosen: list[Item] = []
    fates = {item.chunk_no: Fate.NO_ROOM for item in ranked}
    headers: set[str] = set()
    skipped = 0
    for tried, item in enumerate(ranked):
        if skipped > MOST_SKIPPED:
            fates |= {left.chunk_no: Fate.ENDED for left in ranked[tried:]}
            break
        places = [n for n, other in enumerate(chosen) if _touch(item, other)]
        if places:
            # It may close the gap between two that are chosen already.
            merged = item
            for n in places:
                merged = _merge(chosen[n], merged)
            merged = replace(chosen[places[0]], start=merged.start, end=merged.end, text=merged.text)
            cost = _cost(merged, look) - sum(_cost(chosen[n], look) for n in places)
            if cost <= room:
                fates[item.chunk_no] = Fate.MERGED
                chosen[places[0]] = merged
                for n in reversed(places[1:]):
                    del chosen[n]
                room -= cost
            continue
        if k is not None and len(chosen) >= k:
            fates |= {left.chunk_no: Fate.BEYOND_K for left in ranked[tried:]}
            break
        title = block.header(item, look)
        extra = 0 if title in headers else budget.quarters(title) + 1
        cost = _cost(item, look) + extra
        fate = Fate.WHOLE
        if cost > room:
            if room - extra < LEAST_EXCERPT:
                skipped += 1
                continue
            item = _cut(item, room - extra, look)
            cost = _cost(item, look) + extra
            if cost > room or not item.text.strip():
                skipped += 1
                continue
            fate = Fate.SHORTENED
        room -= cost
        headers.add(title)
        chosen.append(item)
        fates[item.chunk_no] = fate
    return chosen, fates


def _cost(item: Item, look: block.Look) -> int:
    return budget.quarters(block.line(item, look)) + 1


def _touch(item: Item, other: Item) -> bool:
    return item.message_id == other.message_id and item.start <= other.end and other.start <= item.end


def _merge(first: Item, second: Item) -> Item:
    """One item over both spans; keeps the rank, score and reasons of the first."""
    left, right = (first, second) if first.start <= second.start else (second, first)
    text = left.text + right.text[max(0, left.end - right.start) :]
    return replace(first, start=left.start, end=max(left.end, right.end), text=text)


def _cut(item: Item, room: int, look: block.Look) -> Item:
    """The beginning of the item that fits into `room` quarter tokens, whole graphemes, to the last white space."""
    label = _cost(replace(item, text=""), look)
    left = room - label - 8  # what escaping may add
    taken = 0
    for cluster in regex.finditer(r"\X", item.text):
        left -= budget.quarters(cluster.group())
        if left < 0:
            break
        taken = cluster.end()
    piece = item.text[:taken]
    space = max(piece.rfind(" "), piece.rfind("\n"))
    if space > taken * 3 // 4:
        piece = piece[:space]
    return replace(item, end=item.start + len(piece), text=piece)
