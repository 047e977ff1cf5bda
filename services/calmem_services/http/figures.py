"""The recall figures of a retrieval service, read from its /metrics."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import isinf

import httpx
from prometheus_client.parser import text_string_to_metric_families

from calmem.settings import Settings

_TIMEOUT_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class RecallFigures:
    """Recalls by tier; `p50` and `p95` of each stage in milliseconds, None above the largest bucket."""

    tiers: dict[str, int]
    latency_ms: dict[str, dict[str, float | None]]


def figures_url(settings: Settings) -> str:
    """Where the retrieval service of this machine has them."""
    return f"{settings.url(settings.retrieval_port)}/metrics"


def read_figures(url: str) -> RecallFigures | None:
    """The figures since the service's start, or None when no retrieval service answers there."""
    try:
        answer = httpx.get(url, timeout=_TIMEOUT_SECONDS, trust_env=False)
    except httpx.HTTPError:
        return None
    if answer.status_code != httpx.codes.OK or "calmem_recall_seconds" not in answer.text:
        return None
    tiers: dict[str, int] = {}
    buckets: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            if sample.name == "calmem_recall_tier_total":
                tiers[sample.labels["tier"]] = int(sample.value)
            elif sample.name == "calmem_recall_seconds_bucket":
                buckets[sample.labels["stage"]].append((float(sample.labels["le"]), sample.value))
    latency = {stage: {"p50": _at(rows, 0.5), "p95": _at(rows, 0.95)} for stage, rows in buckets.items()}
    return RecallFigures(tiers=tiers, latency_ms=latency)


def _at(rows: list[tuple[float, float]], share: float) -> float | None:
    """Milliseconds below which `share` of the observations lie, by linear interpolation inside the bucket."""
    rows = sorted(rows)
    wanted = share * rows[-1][1]
    before_edge = before_count = 0.0
    for edge, count in rows:
        if count >= wanted and count > 0:
            if isinf(edge):
                return None
            part = (wanted - before_count) / (count - before_count) if count > before_count else 1.0
            return round(1_000 * (before_edge + part * (edge - before_edge)), 1)
        before_edge, before_count = edge, count
    return None
