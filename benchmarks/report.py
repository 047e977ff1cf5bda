"""What a benchmark prints: an aligned table, and the same as JSON in bench-results/."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

RESULTS = Path("bench-results")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured number. With a target, `better` says on which side of it is good."""

    what: str
    value: float
    unit: str
    target: float | None = None
    better: Literal["higher", "lower"] = "higher"
    note: str = ""

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.value >= self.target if self.better == "higher" else self.value <= self.target


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` (0..1) of the values do not exceed; nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered)) - 1))]


def p50(values: Sequence[float]) -> float:
    return statistics.median(values)


def seconds(call: Callable[[], object]) -> float:
    """How long one call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def options(description: str) -> argparse.ArgumentParser:
    """The command line of a benchmark; some have more to say."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and messages, a smaller table of tenants")
    return parser


def asked_quick(description: str) -> bool:
    """Read the command line of a benchmark."""
    return bool(options(description).parse_args().quick)


def publish(part: str, rows: Sequence[Row], *, quick: bool) -> None:
    """Print the table of one part and write bench-results/<part>.json."""
    width = max(len(row.what) for row in rows)
    print(f"\n{part}" + (" (quick)" if quick else ""))
    for row in rows:
        print(f"  {row.what:<{width}}  {row.value:>10,.2f} {row.unit:<7}{_verdict(row)}{row.note and '  ' + row.note}")
    RESULTS.mkdir(exist_ok=True)
    document = {
        "part": part,
        "quick": quick,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {"cpus": os.cpu_count(), "load": os.getloadavg()[0], "platform": platform.platform()},
        "rows": [asdict(row) | {"met": row.met} for row in rows],
    }
    (RESULTS / f"{part}.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")


def _verdict(row: Row) -> str:
    if row.target is None:
        return ""
    sign = ">=" if row.better == "higher" else "<="
    return f"  {sign} {row.target:,g}: {'met' if row.met else 'MISSED'}"
