"""`calmem eval` from files to measures, and what it refuses before it starts."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest

from calmem.settings import Settings
from tests.support.cli import Run, history, line


@pytest.mark.parametrize("queries", ["not json", "{}", '{"query_id": "q", "relevant": []}', ""])
def test_eval_refuses_bad_files_before_it_starts(run: Run, tmp_path: Path, queries: str) -> None:
    answer = run(
        "eval",
        "--history", history(tmp_path / "h.jsonl", [line(message_id="m1")]),
        "--queries", history(tmp_path / "q.jsonl", [queries]),
    )  # fmt: skip

    assert answer.code == 2
    assert "q.jsonl" in answer.err


def test_eval_refuses_a_bad_budget_or_place(run: Run, tmp_path: Path) -> None:
    file = history(tmp_path / "h.jsonl", [line(message_id="m1")])
    files = ("--history", file, "--queries", file)

    assert "--budget" in run("eval", *files, "--budget", "much").err
    assert "--budget" in run("eval", *files, "--budget", "0").err
    assert "--json" in run("eval", *files, "--json", str(tmp_path / "none" / "out.json")).err
    assert "--report" in run("eval", *files, "--report", str(tmp_path / "none" / "out.html")).err
    assert "must end in .html" in run("eval", *files, "--report", str(tmp_path / "out.png")).err
    assert "--per-query" in run("eval", *files, "--per-query").err
    assert "--sweep" in run("eval", *files, "--sweep", "no_setting=1").err
    assert "--against" in run("eval", *files, "--against", file).err


def test_eval_measures_every_system_and_drops_its_database(run: Run, settings: Settings, tmp_path: Path) -> None:
    said = ["The gate is green.", "我叔叔住在成都。", "Order SF123456789 arrived <moim> broken.", "Lunch was late."]
    lines = [line(message_id=f"m{n}", content=one) for n, one in enumerate(said)]
    asked = {"user_id": "ada", "asked_at": "2025-06-01T00:00:00+00:00"}
    queries = [
        {"query_id": "q0", "query": "green gate", "relevant": ["m0"], "category": "one", **asked},
        {"query_id": "q1", "query": "叔叔住在哪里", "relevant": ["m1"], "category": "two", **asked},
        {"query_id": "q2", "query": "SF123456789", "relevant": ["m2"], "category": "two", **asked},
    ]
    out = tmp_path / "out.json"
    answer = run(
        "eval",
        "--history", history(tmp_path / "h.jsonl", lines),
        "--queries", history(tmp_path / "q.jsonl", [json.dumps(query) for query in queries]),
        "--budget", "100,750",
        "--json", str(out),
    )  # fmt: skip

    assert answer.code == 0, answer.err
    report = json.loads(out.read_text("utf-8"))
    assert (report["queries"], report["messages"]) == (3, 4)
    assert set(report["systems"]) == {"full", "dense", "words"}
    full = report["systems"]["full"]
    assert set(full["by_category"]) == {"one", "two"}
    assert {"recall@1", "recall@20", "hit@5", "mrr", "budget@100", "budget@750"} <= set(full["overall"])
    assert (full["overall"]["mrr"], full["overall"]["budget@750"]) == (1.0, 1.0)
    assert full["overall"]["strangers"] is None  # ada is alone
    assert not {"queries_detail", "sweeps", "against"} & set(report)
    with psycopg.connect(settings.database_url) as conn:
        left = conn.execute("SELECT datname FROM pg_database WHERE datname LIKE 'calmem_eval%'").fetchall()
    assert left == []


def test_eval_sweeps_compares_and_draws(run: Run, tmp_path: Path) -> None:
    said = [
        ("ada", "The gate is green.", "m1"),
        ("ada", "Order SF123456789 arrived broken.", "m2"),
        ("bob", "Penguins swim under the ice.", "m3"),
    ]
    lines = [line(user_id=who, session_id=f"of-{who}", content=one, message_id=no) for who, one, no in said]
    queries = [
        ("q1", "ada", "green gate", "m1", "one"),  # nothing like it in bob's memory
        ("q2", "ada", "Which penguins swim under the ice?", "m1", "one"),  # a stranger's question: bob has the answer
        ("q3", "bob", "SF123456789", "m3", "two"),  # the same, and ada has it by its word alone
    ]
    asked = [
        {"query_id": no, "user_id": who, "query": query, "relevant": [relevant], "category": category,
         "asked_at": "2025-06-01T00:00:00+00:00"}
        for no, who, query, relevant, category in queries
    ]  # fmt: skip
    files = (
        "--history", history(tmp_path / "h.jsonl", lines),
        "--queries", history(tmp_path / "q.jsonl", [json.dumps(one) for one in asked]),
    )  # fmt: skip
    first, second, page = tmp_path / "first.json", tmp_path / "second.json", tmp_path / "page.html"

    answer = run("eval", *files, "--json", str(first), "--per-query", "--workers", "1")

    assert answer.code == 0, answer.err
    report = json.loads(first.read_text("utf-8"))
    strangers = {name: system["overall"]["strangers"] for name, system in report["systems"].items()}
    assert (strangers["full"], strangers["words"]) == (0.6667, 0.6667)
    assert report["systems"]["full"]["by_category"]["two"]["strangers"] == 1.0
    detail = {one["query_id"]: one["systems"]["full"] for one in report["queries_detail"]}
    assert (detail["q1"]["strangers"], detail["q2"]["strangers"], detail["q3"]["strangers"]) == (0.0, 1.0, 1.0)
    assert (detail["q1"]["precision@5"], detail["q1"]["budget@750"]) == (0.2, 1.0)
    assert "precision@5" in answer.out

    answer = run(
        "eval", *files, "--json", str(second), "--against", str(first), "--report", str(page),
        "--sweep-threshold", "--sweep", "candidates=1,200", "--workers", "1",
    )  # fmt: skip

    assert answer.code == 0, answer.err
    report = json.loads(second.read_text("utf-8"))
    assert "queries_detail" not in report
    assert [row["value"] for row in report["sweeps"]["candidates"]] == [1, 200]
    swept = report["sweeps"]["min_cosine"]
    assert (swept[0]["value"], swept[-1]["value"]) == (0.2, 0.7)
    # What words find needs no cosine; and 0.4 is the default.
    assert swept[-1]["strangers"] == 0.6667
    assert next(row for row in swept if row["value"] == 0.4)["strangers"] == strangers["full"]
    change = report["against"]["full"]["overall"]["mrr"]
    assert (change["difference"], change["interval"], change["significant"]) == (0.0, [0.0, 0.0], False)
    assert "full system by min_cosine" in answer.out
    assert "overall, against the earlier report" in answer.out
    drawn = page.read_text("utf-8")
    assert drawn.count("<svg") == 2 + 2 + 2 * 2  # systems, budgets, two categories, two charts a sweep
    assert "Against the earlier report" in drawn

    (tmp_path / "h.jsonl").write_text("\n".join([*lines[:2], lines[2].replace("Penguins", "Seals")]), "utf-8")
    answer = run("eval", *files, "--against", str(first))
    assert (answer.code, answer.out) == (2, "")
    assert "other data" in answer.err
