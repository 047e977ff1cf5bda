"""Measures of retrieval, and refusals of bad files that name the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calmem.errors import InvalidInput
from calmem.settings import Settings
from calmem_services.evaluation import compare, sweeps
from calmem_services.evaluation.data import Labelled, read_labelled, read_queries
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
    assert mean([{"strangers": 1.0}, {"strangers": None}, {"strangers": 0.5}]) == {"strangers": 0.75}
    assert mean([{"strangers": None}, {"strangers": None}]) == {"strangers": None}


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
    path.write_text("\n\n".join(map(json.dumps, (QUERY, QUERY | change))), "utf-8")
    with pytest.raises(InvalidInput, match=f"line 3: {field}"):
        read_queries(path, {"m1": "here"})


@pytest.mark.parametrize("line", ["{", "[1]", '"text"'])
def test_a_line_that_is_no_object_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(line, "utf-8")
    with pytest.raises(InvalidInput, match="line 1"):
        read_queries(path, {})


def labelled(tmp_path: Path, users: list[str], *, spaces: bool = False) -> Labelled:
    separators = None if spaces else (",", ":")
    rows = [{"message_id": f"m{n}", "user_id": user, "content": "here"} for n, user in enumerate(users, 1)]
    (tmp_path / "h.jsonl").write_text("\n".join(json.dumps(row, separators=separators) for row in rows), "utf-8")
    (tmp_path / "q.jsonl").write_text(json.dumps(QUERY, separators=separators), "utf-8")
    return read_labelled(tmp_path / "h.jsonl", tmp_path / "q.jsonl", Settings())


def test_a_stranger_is_the_next_user_in_the_order_of_the_history(tmp_path: Path) -> None:
    data = labelled(tmp_path, ["u", "c", "u", "a"])
    assert [data.stranger_to(user) for user in ("u", "c", "a")] == ["c", "a", "u"]
    assert data.stranger_to("nobody") == "u"


def test_who_is_alone_has_no_stranger(tmp_path: Path) -> None:
    assert labelled(tmp_path, ["u", "u"]).stranger_to("u") is None


def test_the_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    first = labelled(tmp_path, ["u", "v"]).fingerprint
    assert labelled(tmp_path, ["u", "v"], spaces=True).fingerprint == first
    assert labelled(tmp_path, ["u", "w"]).fingerprint != first


def test_sweeps_name_settings_and_values() -> None:
    assert sweeps.chosen(False, []) == {}
    assert sweeps.chosen(False, ["candidates=10,20"]) == {"candidates": [10, 20]}
    both = sweeps.chosen(True, ["MIN_COSINE=0.1,0.9"])
    assert both["min_cosine"] == [0.1, 0.9]
    steps = sweeps.THRESHOLDS["min_cosine"]
    assert (steps[0], steps[1], steps[-1], len(steps)) == (0.2, 0.25, 0.7, 11)


def test_every_threshold_is_a_setting() -> None:
    assert all(isinstance(getattr(Settings(), name), float) for name in sweeps.THRESHOLDS)


@pytest.mark.parametrize(
    "one",
    [
        "none=1",
        "model=a",
        "allow_open=1",
        "min_cosine",
        "min_cosine=",
        "min_cosine=-1",
        "min_cosine=nan",
        "candidates=1.5",
    ],
)
def test_a_bad_sweep_is_refused(one: str) -> None:
    with pytest.raises(InvalidInput, match="--sweep"):
        sweeps.chosen(False, [one])


def test_interval_of_equal_differences_is_the_difference() -> None:
    differences = np.array([[0.25, -1.0]] * 8)
    assert compare.interval(differences).tolist() == [[0.25, -1.0], [0.25, -1.0]]


def test_interval_of_two_queries_holds_every_mean_they_can_have() -> None:
    # Means of two draws from {0, 1}: 0 and 1 in a quarter of the cases each, far more than the 2.5 % cut off.
    assert compare.interval(np.array([[0.0], [1.0]])).tolist() == [[0.0], [1.0]]


def test_interval_narrows_around_the_mean() -> None:
    # 400 differences, half 0 and half 1: the mean's standard error is 0.5 / 20 = 0.025, 1.96 of it 0.049.
    (low,), (high,) = compare.interval(np.array([[0.0], [1.0]] * 200)).tolist()
    assert low == pytest.approx(0.451, abs=0.01)
    assert high == pytest.approx(0.549, abs=0.01)


def report(mrr: list[float], *, detail: bool = True, category: str = "place") -> dict[str, Any]:
    """A report of one system whose queries have these reciprocal ranks."""
    overall = {"mrr": round(sum(mrr) / len(mrr), 4), "strangers": None}
    made: dict[str, Any] = {
        "systems": {"full": {"overall": overall, "by_category": {category: overall}}},
        "queries": len(mrr),
        "messages": 9,
        "seconds": {"record": 0.1},
        "data": "f" * 64,
    }
    if detail:
        made["queries_detail"] = [
            {"query_id": f"q{n}", "category": category, "systems": {"full": {"mrr": one, "strangers": None}}}
            for n, one in enumerate(mrr)
        ]
    return made


def test_a_steady_gain_is_beyond_chance() -> None:
    changes = compare.compare(report([0.0, 0.25, 0.5]), report([0.5, 0.75, 1.0]))["full"]
    gain = {"before": 0.25, "now": 0.75, "difference": 0.5, "interval": [0.5, 0.5], "significant": True}
    assert changes == {"overall": {"mrr": gain}, "by_category": {"place": {"mrr": gain}}}


def test_a_gain_of_some_and_loss_of_others_is_not() -> None:
    change = compare.compare(report([0.0, 1.0]), report([1.0, 0.5]))["full"]["overall"]["mrr"]
    # Differences 1 and -0.5: the mean of two draws is -0.5, 0.25 or 1.
    assert change == {"before": 0.5, "now": 0.75, "difference": 0.25, "interval": [-0.5, 1.0], "significant": False}


@pytest.mark.parametrize("lacking", [0, 1])
def test_without_values_per_query_only_the_difference_is_known(lacking: int) -> None:
    both = [report([0.0], detail=lacking != 0), report([1.0], detail=lacking != 1)]
    assert compare.compare(*both)["full"]["overall"] == {"mrr": {"before": 0.0, "now": 1.0, "difference": 1.0}}


def test_only_what_both_reports_have_is_compared() -> None:
    changes = compare.compare(report([0.0]), report([1.0], category="time"))["full"]
    assert changes["by_category"] == {}
    assert set(changes["overall"]) == {"mrr"}


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        '{"systems": {}, "queries": 1, "messages": 1}',
        '{"systems": {"full": {"overall": {"mrr": "high"}, "by_category": {}}}, "queries": 1, "messages": 1}',
        '{"systems": {"full": {"overall": {"mrr": 1}}}, "queries": 1, "messages": 1}',
        '{"systems": {"full": {"overall": {}, "by_category": {}}}, "queries": "1", "messages": 1}',
        '{"systems": {"full": {"overall": {}, "by_category": {}}}, "queries": 1, "messages": 1, "queries_detail": [1]}',
    ],
)
def test_what_is_no_report_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "old.json"
    path.write_text(content, "utf-8")
    with pytest.raises(InvalidInput, match=r"--against: old\.json"):
        compare.read_report(path)


def test_a_report_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps(report([0.5])), "utf-8")
    assert compare.read_report(path) == report([0.5])


@pytest.mark.parametrize(
    "other", [{"fingerprint": "e" * 64}, {"queries": 2}, {"messages": 8}], ids=["content", "queries", "messages"]
)
def test_a_report_of_other_data_is_refused(other: dict[str, Any]) -> None:
    same: dict[str, Any] = {"fingerprint": "f" * 64, "queries": 1, "messages": 9}
    compare.check_same_data(report([0.5]), **same)
    with pytest.raises(InvalidInput, match="other data"):
        compare.check_same_data(report([0.5]), **(same | other))


def test_a_report_without_a_fingerprint_is_known_by_its_counts() -> None:
    old = {name: value for name, value in report([0.5]).items() if name != "data"}
    compare.check_same_data(old, fingerprint="f" * 64, queries=1, messages=9)
