"""Measures of retrieval, and refusals of bad files that name the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calmem.errors import InvalidInput
from calmem_services.evaluation.data import read_queries
from calmem_services.evaluation.metrics import evidence_recall, mean, ranked_scores

QUERY = {
    "query_id": "q1",
    "user_id": "u",
    "query": "where?",
    "relevant": ["m1"],
    "category": "place",
    "asked_at": "2025-01-01T00:00:00Z",
}


def test_ranked_scores() -> None:
    scores = ranked_scores(["m9", "m1", "m1", "m8", "m7", "m6", "m2"], ["m1", "m2"])
    assert scores["recall@1"] == scores["hit@1"] == 0.0
    assert (scores["recall@5"], scores["hit@5"], scores["precision@5"]) == (0.5, 1.0, 0.2)
    assert scores["recall@10"] == 1.0
    assert scores["mrr"] == 0.5
    assert ranked_scores([], ["m1"])["mrr"] == 0.0


def test_evidence_counts_whole_or_from_200_characters() -> None:
    long = "".join(chr(0x4E00 + n) for n in range(500))
    assert evidence_recall("user: short text\n", ["short text", "another"]) == 0.5
    assert evidence_recall(f"user: {long[150:350]}\n", [long]) == 1.0
    assert evidence_recall(f"user: {long[150:349]}\n", [long]) == 0.0


def test_mean() -> None:
    assert mean([{"mrr": 1.0}, {"mrr": 0.0}]) == {"mrr": 0.5}
    assert mean([]) == {}


def test_queries_are_read(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps(QUERY) + "\n\n", "utf-8")
    assert read_queries(path, {"m1": "here"})[0].relevant == ("m1",)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"relevant": []}, "relevant"),
        ({"relevant": ["gone"]}, "relevant"),
        ({"relevant": [["m1"]]}, "relevant"),
        ({"asked_at": "2025-01-01T00:00:00"}, "asked_at"),
    ],
)
def test_a_bad_query_is_named_by_line_and_field(tmp_path: Path, change: dict[str, Any], field: str) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text("\n".join(map(json.dumps, (QUERY, QUERY | change))), "utf-8")
    with pytest.raises(InvalidInput, match=f"line 2: {field}"):
        read_queries(path, {"m1": "here"})


@pytest.mark.parametrize("line", ["{", "[1]", '"text"'])
def test_a_line_that_is_no_object_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(line, "utf-8")
    with pytest.raises(InvalidInput, match="line 1"):
        read_queries(path, {})
