"""A report of `calmem eval` as one HTML file that needs nothing else."""

from __future__ import annotations

from typing import Any


def render(report: dict[str, Any]) -> str:
    return str(report)
