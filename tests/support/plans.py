"""What Postgres did for a statement: the scans of its plan, as EXPLAIN (ANALYZE) counts them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calmem.storage.pool import Connection


def scans(conn: Connection, statement: str, values: Mapping[str, object]) -> list[dict[str, Any]]:
    """Every scan that the statement ran."""
    row = conn.execute(f"EXPLAIN (ANALYZE, FORMAT json) {statement}".encode(), values).fetchone()
    assert row is not None
    return [node for node in _nodes(row[0][0]["Plan"]) if "Scan" in node["Node Type"]]


def _nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for child in plan.get("Plans", []) for node in _nodes(child))]
