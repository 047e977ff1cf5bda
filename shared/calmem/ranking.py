"""From the hits of both arms to ranked items: fuse, then rank. Pure and deterministic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from heapq import nsmallest
from math import log1p

from calmem import related, soft_match
from calmem.hits import DenseHit, DenseHits, Place, Window, WordHit, WordHits
from calmem.model import Item
from calmem.soft_match import WordTable
from calmem.words import Script

# "Most recent" orders by time those that say at least so much of what the best one says.
RECENT_ENOUGH = 0.5
# Characters beyond this make a message no more telling.
TELLING_CHARS = 200
# A query is about this user's memory if one chunk is that much nearer than `min_cosine`, counting the share of the
# query's words it has; or has that share of them; or (a chunk without its vector yet) at least that share.
NEARER, COVERED_COUNTS, COVERED, COVERED_UNSEEN = 0.05, 0.15, 0.5, 0.2
# The nearest of many is near by chance: from so many vectors on all of NEARER is asked, of fewer less.
MANY = 200
# In scripts without spaces the words are characters and pairs: that share of them the user must have used somewhere.
KNOWN = 0.34
# What is left of the weight of meaning where the model does not know the query's words.
NOT_UNDERSTOOD = 0.4
# So many of the best are asked what else they speak of (see `calmem.related`).
SEEDS = 2
# For a query that says when something happened: told in that time, or close to it.
IN_WINDOW, NEAR_WINDOW = 0.25, 0.12


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What each observation adds to a score; cosine and BM25 are divided by the query's best."""

    meaning: float
    words: float
    after: tuple[float, float]  # BM25 of the message one and two turns before this one
    before: tuple[float, float]  # of the one and two turns after it
    session_words: float  # the session's best BM25
    session_meaning: float  # and cosine
    speaker: float  # spoken by somebody the query names
    telling: float  # for each e-fold of its length
    question: float  # taken off: it asks and does not tell
    related: float = 0.0  # its share of what the best say beyond the query: an answer in two steps
    soft: float = 0.0  # its share of the query's words that it says otherwise


# Fitted on the given part of LoCoMo and MemDaily, rounded (docs/decisions/0004-ranking.md).
_LATIN = Weights(
    meaning=0.25,
    words=0.25,
    after=(0.14, 0.10),
    before=(0.05, 0.04),
    session_words=0.17,
    session_meaning=0.14,
    speaker=0.06,
    telling=0.067,
    question=0.10,
    soft=0.3,
)
_CJK = Weights(
    meaning=0.18,
    words=0.37,
    after=(0.025, 0.01),
    before=(0.017, 0.01),
    session_words=0.0,
    session_meaning=0.0,
    speaker=0.06,
    telling=0.0,
    question=0.05,
    related=0.2,
)
_WEIGHTS: Mapping[Script, Weights] = {"latin": _LATIN, "cjk": _CJK, "other": _LATIN}


def weights(script: Script, *, understood: bool) -> Weights:
    """The weights for a query of this script; `understood`: the model knows its words."""
    of_script = _WEIGHTS[script]
    return of_script if understood else replace(of_script, meaning=NOT_UNDERSTOOD * of_script.meaning)


@dataclass(frozen=True, kw_only=True)
class Found:
    """A chunk found by one or both arms, or (`chunk_no` None) the message beside one, before its text is loaded.

    `own`: what the chunk itself says of the query, 0 to 1; `score` counts its place in the conversation too.
    """

    chunk_no: int | None
    place: Place
    own: float
    score: float
    scores: Mapping[str, float]
    reasons: tuple[str, ...]


def is_about(dense: DenseHits, words: WordHits, *, script: Script, min_cosine: float) -> bool:
    """Whether the query has to do with this user's memory at all; if not, its best hits are only the least bad."""
    covered = {hit.chunk_no: hit.covered for hit in words.hits}
    near = min_cosine + NEARER * min(1.0, log1p(len(dense.hits)) / log1p(MANY))
    if any(hit.identifier or hit.covered >= COVERED for hit in words.hits):
        return True
    if dense.understood and any(
        hit.cosine + COVERED_COUNTS * covered.get(hit.chunk_no, 0.0) >= near for hit in dense.hits
    ):
        return True
    if script == "cjk":
        return words.known >= KNOWN
    seen = {hit.chunk_no for hit in dense.hits}
    return dense.complete and any(share >= COVERED_UNSEEN and no not in seen for no, share in covered.items())


def timely(sent: Mapping[int, datetime], window: Window) -> dict[int, float]:
    """What the time of a chunk adds to its score, where the query says when something happened.

    What happened is told then, the day before, or in the week after; the rest adds nothing.
    """
    added = {}
    for no, moment in sent.items():
        if _inside(moment, window, timedelta(), timedelta()):
            added[no] = IN_WINDOW
        elif _inside(moment, window, timedelta(days=1), timedelta(days=8)):
            added[no] = NEAR_WINDOW
    return added


def _inside(moment: datetime, window: Window, before: timedelta, after: timedelta) -> bool:
    return (window.since is None or moment - window.since >= -before) and (
        window.until is None or moment - window.until < after
    )


def fuse(
    dense: Sequence[DenseHit],
    words: Sequence[WordHit],
    places: Mapping[int, Place],
    *,
    added: Mapping[int, float],
    weights: Weights,
    min_cosine: float,
    limit: int,
) -> list[Found]:
    """The `limit` best of both arms and of the messages up to two turns away from what words found, best first.

    A hit by meaning alone needs `min_cosine`; one that words found needs no cosine. Hits without a place are left out.
    `added`: by chunk_no, what else speaks for it (see `timely`); the turns beside have a share in the highest.
    """
    by_words = {hit.chunk_no: hit.bm25 for hit in words if hit.chunk_no in places}
    by_meaning = {
        hit.chunk_no: hit.cosine
        for hit in dense
        if hit.chunk_no in places and (hit.cosine >= min_cosine or hit.chunk_no in by_words)
    }
    said, meant = _scaled(by_words), _scaled(by_meaning)
    said_at: dict[Place, float] = {}
    session: dict[int, float] = defaultdict(float)
    for scores, weight in ((said, weights.session_words), (meant, weights.session_meaning)):
        best: dict[int, float] = {}
        for no, score in scores.items():
            session_no = places[no].session_no
            best[session_no] = max(best.get(session_no, 0.0), score)
        for session_no, score in best.items():
            session[session_no] += weight * score
    for no, score in said.items():
        said_at[places[no]] = max(said_at.get(places[no], 0.0), score)
    beside: dict[tuple[int, int], float] = defaultdict(float)
    shares = [(distance, *both) for distance, both in enumerate(zip(weights.after, weights.before, strict=True), 1)]
    for (session_no, seq), score in said_at.items():
        for distance, after, before in shares:
            beside[session_no, seq + distance] += after * score
            beside[session_no, seq - distance] += before * score
    added_beside: dict[tuple[int, int], float] = {}
    for no in said.keys() & added.keys():
        session_no, seq = places[no]
        for distance, _, _ in shares:
            for at in ((session_no, seq + distance), (session_no, seq - distance)):
                added_beside[at] = max(added_beside.get(at, 0.0), added[no])

    # Scores are negated, so that the tuples themselves are in the order of the ranking; chunk_no 0: the message beside.
    candidates: list[tuple[float, tuple[int, int], int]] = []
    hit_places = set()
    for no in said.keys() | meant.keys():
        place = places[no]
        hit_places.add(place)
        score = weights.meaning * meant.get(no, 0.0) + weights.words * said.get(no, 0.0)
        around = beside.get(place, 0.0) + session[place.session_no]
        candidates.append((-(score + around + added.get(no, 0.0)), place, no))
    for at, score in beside.items():
        if at[1] > 0 and at not in hit_places:
            candidates.append((-(score + session[at[0]] + added_beside.get(at, 0.0)), at, 0))

    found = []
    for negated, at, number in nsmallest(limit, candidates):
        score, place, chunk_no = -negated, Place(*at), number or None
        observed = {"beside": beside.get(place, 0.0), "session": session[place.session_no]}
        reasons = []
        own = 0.0
        in_time = added_beside.get(place, 0.0) if chunk_no is None else added.get(chunk_no, 0.0)
        if in_time:
            observed["time"] = in_time
        if chunk_no in by_words:
            observed["bm25"] = by_words[chunk_no]
            own += weights.words * said[chunk_no]
            reasons.append("words")
        if chunk_no in by_meaning:
            observed["cosine"] = by_meaning[chunk_no]
            own += weights.meaning * meant[chunk_no]
            if by_meaning[chunk_no] >= min_cosine:
                reasons.append("meaning")
        found.append(
            Found(
                chunk_no=chunk_no,
                place=place,
                own=own / (weights.meaning + weights.words),
                score=score,
                scores=observed,
                reasons=tuple(reasons) if chunk_no is not None else ("beside",),
            )
        )
    return found


def _scaled(scores: Mapping[int, float]) -> dict[int, float]:
    best = max(scores.values(), default=0.0)
    return {no: max(0.0, score) / best if best > 0 else 0.0 for no, score in scores.items()}


def rank(
    loaded: Sequence[tuple[Place, Item]],
    found: Sequence[Found],
    *,
    weights: Weights,
    speakers: Collection[str],
    latest_first: bool,
    query: str = "",
    table: WordTable | None = None,
) -> list[Item]:
    """The loaded items with their scores, best first; with `latest_first` the relevant ones by time.

    `speakers`: the names that the query mentions; `query` is compared with the texts where the weights say so, by `table`
    if there is one. What an item says of its own counts with its length, up to 200 characters.
    """
    by_chunk = {one.chunk_no: one for one in found if one.chunk_no is not None}
    by_place = {one.place: one for one in found if one.chunk_no is None}
    scored: list[tuple[float, Item]] = []
    for place, item in loaded:
        hit = by_chunk.get(item.chunk_no) or by_place.get(place)
        if hit is None:
            continue
        told = weights.telling * log1p(min(len(item.text), TELLING_CHARS))
        told -= weights.question * item.text.rstrip().endswith(("?", "？"))
        told += weights.speaker * (item.name in speakers)
        reasons = (*hit.reasons, "speaker") if item.name in speakers else hit.reasons
        scores = {**hit.scores, "telling": told}
        scored.append((hit.own, replace(item, score=hit.score + told, scores=scores, reasons=reasons)))
    if weights.soft and table is not None:
        shares = soft_match.shares([item.text for _, item in scored], query, table, speakers=speakers)
        scored = _adding("soft", weights.soft, shares, scored)
    scored.sort(key=_best_first)
    if weights.related:
        most = max((own for own, _ in scored), default=0.0)
        trust = [own / most if most else 0.0 for own, _ in scored[:SEEDS]]
        shares = related.shares([item.text for _, item in scored], query, trust)
        scored = _adding("related", weights.related, shares, scored)
        scored.sort(key=_best_first)
    if latest_first and scored:
        enough = RECENT_ENOUGH * max(own for own, _ in scored)
        recent = [item for own, item in scored if own >= enough]
        recent.sort(key=lambda i: (i.created_at, i.seq), reverse=True)
        return recent + [item for own, item in scored if own < enough]
    return [item for _, item in scored]


def _adding(
    name: str, weight: float, shares: Sequence[float], scored: Sequence[tuple[float, Item]]
) -> list[tuple[float, Item]]:
    """With a further observation of each, in the same order."""
    return [
        (own, replace(item, score=item.score + weight * share, scores={**item.scores, name: weight * share}))
        for (own, item), share in zip(scored, shares, strict=True)
    ]


def _best_first(scored: tuple[float, Item]) -> tuple[float, datetime, str, int, int]:
    _, item = scored
    return -item.score, item.created_at, item.session_id, item.seq, item.start
