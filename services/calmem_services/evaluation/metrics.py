"""Measures of retrieval on labelled queries. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

KS = (1, 5, 10, 20)
# So much of a relevant message in the block counts as the whole of it.
ENOUGH_CHARS = 200


def ranked_scores(ranked: Sequence[str], relevant: Collection[str]) -> dict[str, float]:
    """recall@k, hit@k, precision@k for k of KS, and the reciprocal rank; `ranked` holds message ids, best first."""
    scores = {}
    unique = list(dict.fromkeys(ranked))
    for k in KS:
        found = len(set(unique[:k]) & set(relevant))
        scores[f"recall@{k}"] = found / len(relevant)
        scores[f"hit@{k}"] = float(found > 0)
        scores[f"precision@{k}"] = found / k
    first = next((place for place, one in enumerate(unique, 1) if one in relevant), None)
    scores["mrr"] = 0.0 if first is None else 1 / first
    return scores


def evidence_recall(block: str, contents: Sequence[str]) -> float:
    """Share of these messages whose whole text, or at least 200 characters of it, is in the block."""
    return sum(_is_in(block, content.strip()) for content in contents) / len(contents)


def _is_in(block: str, content: str) -> bool:
    if content in block:
        return True
    return any(content[start : start + ENOUGH_CHARS] in block for start in range(len(content) - ENOUGH_CHARS + 1))


def mean(rows: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """The mean of each measure over the queries that have it; None when none has."""
    means: dict[str, float | None] = {}
    for name in rows[0] if rows else ():
        values = [value for row in rows if (value := row[name]) is not None]
        means[name] = round(sum(values) / len(values), 4) if values else None
    return means
