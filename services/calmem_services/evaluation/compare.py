"""Two reports of `calmem eval` on the same data: what changed, and whether chance explains it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calmem.errors import InvalidInput

_RESAMPLES = 2_000
_SEED = 7
_AT_ONCE = 100


def read_report(path: Path) -> dict[str, Any]:
    """A report that `calmem eval --json` wrote. Raises InvalidInput for any other file."""
    try:
        report = json.loads(path.read_bytes())
    except ValueError as exc:
        raise InvalidInput("--against", f"{path.name} is not JSON") from exc
    if not _is_report(report):
        raise InvalidInput("--against", f"{path.name} is not a report that `calmem eval --json` wrote")
    return dict(report)


def _is_report(report: object) -> bool:
    if not isinstance(report, dict) or not isinstance(report.get("systems"), dict) or not report["systems"]:
        return False
    if not all(isinstance(report.get(name), int) for name in ("queries", "messages")):
        return False
    return all(
        isinstance(system, dict)
        and _is_measures(system.get("overall"))
        and isinstance(system.get("by_category"), dict)
        and all(_is_measures(measures) for measures in system["by_category"].values())
        for system in report["systems"].values()
    ) and _is_detail(report.get("queries_detail", []))


def _is_measures(measures: object) -> bool:
    return isinstance(measures, dict) and all(
        value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in measures.values()
    )


def _is_detail(detail: object) -> bool:
    return isinstance(detail, list) and all(
        isinstance(row, dict)
        and {"query_id", "category"} <= row.keys()
        and isinstance(row.get("systems"), dict)
        and all(_is_measures(measures) for measures in row["systems"].values())
        for row in detail
    )


def check_same_data(earlier: Mapping[str, Any], *, fingerprint: str, queries: int, messages: int) -> None:
    """Raises InvalidInput when the earlier report is of another history or other queries.

    Reports without a fingerprint (of 0.1.0 and before) are known by their counts alone.
    """
    same = earlier.get("data", fingerprint) == fingerprint
    if not same or (earlier["queries"], earlier["messages"]) != (queries, messages):
        raise InvalidInput(
            "--against",
            f"the report is of other data: {earlier['queries']} queries on {earlier['messages']} messages, "
            f"now {queries} on {messages}" + ("" if same else ", and not the same ones"),
        )


def compare(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """By system, then `overall` and each category, then measure: `before`, `now`, `difference`, and, when both
    reports hold every query's values, `interval` (95 %, see `interval`) and `significant`.

    Only what both reports have is compared.
    """
    pairs = _pairs(before, now)
    return {
        system: {
            "overall": _changes(before, now, system, None, pairs),
            "by_category": {
                category: _changes(before, now, system, category, pairs)
                for category in now["systems"][system]["by_category"]
                if category in before["systems"][system]["by_category"]
            },
        }
        for system in now["systems"]
        if system in before["systems"]
    }


_Pair = tuple[Mapping[str, Any], Mapping[str, Any]]


def _pairs(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[_Pair]:
    """Each query's rows in both reports; none unless they hold the same queries in the same order."""
    then, present = before.get("queries_detail", []), now.get("queries_detail", [])
    same = [row["query_id"] for row in then] == [row["query_id"] for row in present]
    return list(zip(then, present, strict=True)) if same else []


def _changes(
    before: Mapping[str, Any], now: Mapping[str, Any], system: str, category: str | None, pairs: Sequence[_Pair]
) -> dict[str, Any]:
    then, present = (_measures(report, system, category) for report in (before, now))
    shared = {name: (then[name], value) for name, value in present.items() if name in then}
    known = {name: pair for name, pair in shared.items() if None not in pair}
    changes = {
        name: {"before": old, "now": new, "difference": round(new - old, 4)} for name, (old, new) in known.items()
    }
    rows = [
        (old["systems"].get(system, {}), new["systems"].get(system, {}))
        for old, new in pairs
        if category is None or new["category"] == category
    ]
    paired = [
        name for name in known if rows and all(a.get(name) is not None and b.get(name) is not None for a, b in rows)
    ]
    if paired:
        intervals = interval(np.array([[new[name] - old[name] for name in paired] for old, new in rows]))
        for name, (low, high) in zip(paired, intervals.T.tolist(), strict=True):
            changes[name] |= {"interval": [round(low, 4), round(high, 4)], "significant": low > 0 or high < 0}
    return changes


def _measures(report: Mapping[str, Any], system: str, category: str | None) -> dict[str, Any]:
    of_system = report["systems"][system]
    return dict(of_system["overall"] if category is None else of_system["by_category"][category])


def interval(differences: NDArray[np.float64]) -> NDArray[np.float64]:
    """The 95 % percentile interval of each column's mean in a paired bootstrap over the rows, always the same draws.

    `differences`: (queries, measures); answers (2, measures), low and high. Efron and Tibshirani 1993, chapter 13.
    """
    rng = np.random.default_rng(_SEED)
    n = len(differences)
    even = np.full(n, 1 / n)
    means = [rng.multinomial(n, even, size=_AT_ONCE) @ differences / n for _ in range(_RESAMPLES // _AT_ONCE)]
    return np.percentile(np.concatenate(means), [2.5, 97.5], axis=0)
