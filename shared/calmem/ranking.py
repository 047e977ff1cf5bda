"""From the hits of both arms to the items of the block: fuse, spread, fit. Pure and deterministic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from zoneinfo import ZoneInfo

import regex

from calmem import block, budget
from calmem.model import Block, Budget, DenseHit, Fact, Item, Style, WordHit
from calmem.words import Script

# Weight of meaning against words, by the script of the query (docs/decisions/0004-ranking.md).
DENSE_WEIGHT: Mapping[Script, float] = {"latin": 0.5, "cjk": 0.2, "other": 0.5}
# What a message gets of the score of one that is 1 and 2 turns away in its session.
NEIGHBOUR_SHARE: Mapping[int, float] = {1: 0.3, 2: 0.1}
# "Most recent" orders by time those that are at least so relevant, relative to the best.
RECENT_ENOUGH = 0.5
# An item that does not fit whole is cut if that many quarter tokens are left for it.
LEAST_EXCERPT = 160
# How many items may be passed over because they do not fit before packing ends.
MOST_SKIPPED = 20


@dataclass(frozen=True, kw_only=True)
class Fused:
    """A chunk found by one or both arms; `score` is between 0 and 1."""

    chunk_no: int
    score: float
    scores: Mapping[str, float]
    reasons: tuple[str, ...]


def fuse(dense: Sequence[DenseHit], words: Sequence[WordHit], *, script: Script, min_cosine: float) -> list[Fused]:
    """Both arms in one order, best first: the weighted sum of their scores, each divided by its best.

    A hit by meaning alone needs `min_cosine`; one that words found needs no cosine.
    """
    by_words = {hit.chunk_no: hit.bm25 for hit in words}
    by_meaning = {hit.chunk_no: hit.cosine for hit in dense}
    most_words = max(by_words.values(), default=0.0)
    most_meaning = max(by_meaning.values(), default=0.0)
    weight = DENSE_WEIGHT[script] if words else 1.0
    if not dense:
        weight = 0.0
    fused = []
    for chunk_no in by_words.keys() | by_meaning.keys():
        cosine, bm25 = by_meaning.get(chunk_no), by_words.get(chunk_no)
        if bm25 is None and (cosine is None or cosine < min_cosine):
            continue
        meaning = 0.0 if cosine is None or most_meaning <= 0 else max(0.0, cosine) / most_meaning
        word = 0.0 if bm25 is None or most_words <= 0 else bm25 / most_words
        scores: dict[str, float] = {}
        if cosine is not None:
            scores["cosine"] = cosine
        if bm25 is not None:
            scores["bm25"] = bm25
        reasons = (("words",) if bm25 is not None else ()) + (
            ("meaning",) if cosine is not None and cosine >= min_cosine else ()
        )
        score = weight * meaning + (1 - weight) * word
        fused.append(Fused(chunk_no=chunk_no, score=score, scores=scores, reasons=reasons))
    return sorted(fused, key=lambda f: (-f.score, f.chunk_no))


def spread(items: Sequence[Item], fused: Sequence[Fused], *, latest_first: bool) -> list[Item]:
    """The loaded items with their scores, best first; a message also scores for what is said around it.

    `items`: the hits and their neighbours. A neighbour that is no hit itself comes along with the reason `neighbour`.
    """
    found = {hit.chunk_no: hit for hit in fused}
    best: dict[tuple[str, int], float] = {}
    for item in items:
        hit = found.get(item.chunk_no)
        if hit is not None:
            place = (item.session_id, item.seq)
            best[place] = max(best.get(place, 0.0), hit.score)
    scored = []
    for item in items:
        hit = found.get(item.chunk_no)
        around = sum(
            share * best.get((item.session_id, item.seq + side * distance), 0.0)
            for distance, share in NEIGHBOUR_SHARE.items()
            for side in (-1, 1)
        )
        own = hit.score if hit is not None else 0.0
        if own + around <= 0:
            continue
        scores = {**(hit.scores if hit is not None else {}), "neighbours": around}
        reasons = hit.reasons if hit is not None else ("neighbour",)
        scored.append(replace(item, score=own + around, scores=scores, reasons=reasons))
    scored.sort(key=lambda i: (-i.score, i.created_at, i.session_id, i.seq, i.start))
    if latest_first and scored:
        enough = RECENT_ENOUGH * scored[0].score
        recent = [i for i in scored if i.score >= enough]
        recent.sort(key=lambda i: (i.created_at, i.seq), reverse=True)
        scored = recent + [i for i in scored if i.score < enough]
    return scored


def fit(
    ranked: Sequence[Item],
    *,
    k: int | None,
    facts: Sequence[Fact],
    zone: ZoneInfo,
    limits: Budget,
    style: Style,
    new_user: bool,
) -> tuple[Block, list[Item]]:
    """The block and the items in it, in rank order: taken one by one as long as they fit.

    Facts come first and are cut only at the whole block's limit. Pieces of one message that overlap or touch become
    one item. The frame counts. The items for a smaller `k` are the first of those for a larger one.
    Empty when not even the frame, or the note of facts left out, fits.
    """
    look = block.Look(style=style, zone=zone)
    whole = 4 * limits.block - block.frame_quarters(new_user=new_user, style=style)
    kept, left_out = block.fit_facts(facts, whole)
    used = block.facts_quarters(kept, left_out)
    if whole < used:
        return Block(text="", tokens=0, facts_left_out=len(facts)), []
    room = min(whole - used, 4 * limits.episodes)
    chosen = _take(ranked, k, room, look)
    rendered = block.render(items=chosen, facts=kept, facts_left_out=left_out, look=look, new_user=new_user)
    return rendered, chosen


def _take(ranked: Sequence[Item], k: int | None, room: int, look: block.Look) -> list[Item]:
    chosen: list[Item] = []
    headers: set[str] = set()
    skipped = 0
    for item in ranked:
        if skipped > MOST_SKIPPED:
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
                chosen[places[0]] = merged
                for n in reversed(places[1:]):
                    del chosen[n]
                room -= cost
            continue
        if k is not None and len(chosen) >= k:
            break
        title = block.header(item, look)
        extra = 0 if title in headers else budget.quarters(title) + 1
        cost = _cost(item, look) + extra
        if cost > room:
            if room - extra < LEAST_EXCERPT:
                skipped += 1
                continue
            item = _cut(item, room - extra, look)
            cost = _cost(item, look) + extra
            if cost > room or not item.text.strip():
                skipped += 1
                continue
        room -= cost
        headers.add(title)
        chosen.append(item)
    return chosen


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
