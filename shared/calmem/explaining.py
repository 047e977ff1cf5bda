"""Use case: why a recall answered what it did, from the very recall that is explained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from calmem import budget
from calmem.fates import Candidate, Explanation, Fate
from calmem.model import Budget, Item, Recall, Tier
from calmem.recall import Recaller
from calmem.searching import Trace
from calmem.settings import Settings
from calmem.storage import search
from calmem.storage.pool import Database


class Explainer:
    """Explains recalls. Safe to share between threads."""

    def __init__(self, database: Database, settings: Settings, recaller: Recaller) -> None:
        self._database = database
        self._settings = settings
        self._recaller = recaller

    def explain(self, /, **request: Any) -> Explanation:
        """A recall with every candidate, its scores, and why it is kept or dropped at each tier that searches.

        `request` as in `Recaller.recall`, which answers it; then the texts of what was dropped are loaded, after the
        deadline of the recall. Errors as there.
        """
        trace = Trace()
        recall = self._recaller.recall(**request, trace=trace)
        tiers = budget.searching_tiers(self._settings)
        fates = {limits.tier: {} if trace.pack is None else trace.pack(limits).fates for limits in tiers}
        ranked = [
            Candidate(item=item, fates={tier: of[item.chunk_no] for tier, of in fates.items()}) for item in trace.ranked
        ]
        return Explanation(
            recall=recall,
            limits=self._limits(recall, tiers),
            candidates=[*ranked, *self._dropped(trace, [limits.tier for limits in tiers])],
            hidden=0 if trace.memory is None else len(trace.memory.scope.hidden),
        )

    def _limits(self, recall: Recall, tiers: list[Budget]) -> Budget:
        if recall.tier is Tier.OFF:
            return Budget(tier=Tier.OFF, episodes=0, block=0)
        facts_only = budget.tier(1, 1, self._settings)
        return next(limits for limits in (*tiers, facts_only) if limits.tier is recall.tier)

    def _dropped(self, trace: Trace, tiers: list[Tier]) -> list[Candidate]:
        """What an arm found and the ranking never saw, the best of each arm first."""
        done = {item.chunk_no for item in trace.ranked}
        scores: dict[int, dict[str, float]] = {}
        for word in trace.words.hits:
            scores.setdefault(word.chunk_no, {})["bm25"] = word.bm25
        for dense in trace.dense.hits:
            scores.setdefault(dense.chunk_no, {})["cosine"] = dense.cosine
        left = [no for no in scores if no not in done]
        if not left or trace.memory is None:
            return []
        with self._database.connection() as conn:
            loaded = {item.chunk_no: item for _, item in search.load_items(conn, trace.memory.scope, left, [])}
        by_words = {hit.chunk_no for hit in trace.words.hits}
        return [
            _candidate(loaded[no], scores[no], _fate(no, trace, by_words), tiers)
            for no in sorted(left, key=lambda no: (-scores[no].get("cosine", 0.0), -scores[no].get("bm25", 0.0), no))
            if no in loaded
        ]


def _fate(chunk_no: int, trace: Trace, by_words: set[int]) -> Fate:
    if not trace.about:
        return Fate.NOT_ABOUT
    if chunk_no not in by_words and chunk_no not in trace.near:
        return Fate.LOW_COSINE
    return Fate.OUT_OF_SIGHT if chunk_no in trace.best else Fate.NOT_BEST


def _candidate(item: Item, scores: dict[str, float], fate: Fate, tiers: list[Tier]) -> Candidate:
    return Candidate(item=replace(item, scores=scores), fates=dict.fromkeys(tiers, fate))
