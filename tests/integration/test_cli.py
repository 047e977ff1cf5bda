"""The `calmem` command against real servers: what it prints, and what it says to bad input."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from prometheus_client import generate_latest

from calmem import metrics
from calmem.memory import Memory
from calmem.settings import Settings
from calmem_services.cli.main import cli
from calmem_services.http.figures import read_figures
from calmem_services.importing.running import LINE_BYTES
from calmem_services.local.stack import free_ports
from tests.support.cli import Run, runner
from tests.support.http import services
from tests.support.rows import rows


@pytest.fixture
def calmem(settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `calmem …` on the test's servers, in this process, as the console script does."""
    return runner(settings, monkeypatch, capsys)


def line(**fields: Any) -> str:
    return json.dumps({"user_id": "ada", "session_id": "s1", "role": "user", "content": "hello", **fields})


def history(path: Path, lines: Sequence[str]) -> str:
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return str(path)


def test_every_command_explains_itself(calmem: Run) -> None:
    def walk(group: Any, path: tuple[str, ...]) -> list[tuple[str, ...]]:
        found = [path]
        for name, command in getattr(group, "commands", {}).items():
            found += walk(command, (*path, name))
        return found

    for path in walk(cli, ()):
        answer = calmem(*path, "--help")
        assert answer.code == 0, path
        assert answer.out.startswith("Usage:"), path


ID = "x" * 257
BAD: list[tuple[tuple[str, ...], int, str]] = [
    (("recall", "q"), 2, "--user"),
    (("recall", "--user", "ada", "q"), 2, "--session"),
    (("recall", "--user", "ada", "--session", "s1"), 2, "QUERY"),
    (("recall", "--user", "", "--session", "s1", "q"), 2, "user_id"),
    (("recall", "--user", "ada", "--session", ID, "q"), 2, "session_id"),
    (("recall", "--user", "ada", "--session", "s1", "--capacity", "0", "q"), 2, "context_window_capacity"),
    (("recall", "--user", "ada", "--session", "s1", "--current-tokens", "-1", "q"), 2, "current_tokens"),
    (("recall", "--user", "ada", "--session", "s1", "--current-tokens", "many", "q"), 2, "--current-tokens"),
    (("recall", "--user", "ada", "--session", "s1", "--active-from-seq", "-1", "q"), 2, "active_from_seq"),
    (("recall", "--user", "ada", "--session", "s1", "--k", "0", "q"), 2, "--k"),
    (("recall", "--user", "ada", "--session", "s1", "--style", "loud", "q"), 2, "--style"),
    (("recall", "--user", "ada", "--session", "s1", "--since", "yesterday", "q"), 2, "since"),
    (("recall", "--user", "ada", "--session", "s1", "--since", "2025-01-01T00:00:00", "q"), 2, "time zone"),
    (("recall", "--user", "ada", "--session", "s1", "q" * 70_000), 2, "query"),
    (("recall", "--user", "ada", "--session", "of-bob", "q"), 1, "session"),
    (("search", "q"), 2, "--user"),
    (("search", "--user", "%", "q"), 2, "user_id"),
    (("search", "--user", "ada", "--k", "1001", "q"), 2, "--k"),
    (("search", "--user", "ada", "--session", "of-bob", "q"), 1, "session"),
    (("facts", "list"), 2, "--user"),
    (("facts", "list", "--user", "*"), 2, "user_id"),
    (("facts", "list", "--user", "ada", "--pattern", "p" * 300), 2, "pattern"),
    (("facts", "set", "--user", "ada", "--session", "s1", "k"), 2, "VALUE"),
    (("facts", "set", "--user", "ada", "--session", "s1", " ", "v"), 2, "key"),
    (("facts", "set", "--user", "ada", "--session", "s1", "k", " "), 2, "value"),
    (("facts", "set", "--user", "ada", "--session", "s1", "k", "v" * 20_000), 2, "value"),
    (("facts", "set", "--user", "ada", "--session", "s1", "--expires-at", "soon", "k", "v"), 2, "expires_at"),
    (("facts", "set", "--user", "ada", "--session", "of-bob", "k", "v"), 1, "session"),
    (("facts", "forget", "--user", "ada", "--session", "s1", "unknown"), 1, "nothing was removed"),
    (("facts", "forget", "--user", "ada", "--session", "of-bob", "k"), 1, "session"),
    (("facts", "history", "--user", "nobody", "--session", "s1", "k"), 1, "session"),
    (("users", "get", "--user", "nobody"), 1, "user_id"),
    (("users", "set", "--user", "new"), 2, "--memory"),
    (("users", "set", "--user", "new", "--memory", "maybe"), 2, "--memory"),
    (("users", "set", "--user", "new", "--time-zone", "Mars/Olympus"), 2, "time_zone"),
    (("users", "delete", "--yes", "--user", "nobody"), 1, "user_id"),
    (("sessions", "list", "--user", "nobody"), 1, "user_id"),
    (("sessions", "delete", "--yes", "--user", "ada", "--session", "unknown"), 1, "session_id"),
    (("sessions", "delete", "--yes", "--user", "ada", "--session", "of-bob"), 1, "session"),
    (("messages", "list", "--user", "ada", "--session", "unknown"), 1, "session_id"),
    (("messages", "delete", "--user", "ada", "unknown"), 1, "nothing was removed"),
    (("messages", "delete", "--user", "ada", "m-bob"), 1, "nothing was removed"),
    (("failed", "--limit", "0"), 2, "--limit"),
    (("failed", "retry"), 2, "MESSAGE_ID"),
    (("failed", "retry", "m", "--all"), 2, "MESSAGE_ID"),
    (("failed", "retry", "unknown"), 1, "message_id"),
    (("import",), 2, "FILE"),
    (("import", "/nonexistent.jsonl"), 2, "/nonexistent.jsonl"),
    (("eval", "--history", "/nonexistent.jsonl", "--queries", "/nonexistent.jsonl"), 2, "--history"),
    (("up", "--workers", "0"), 2, "--workers"),
    (("serve", "nothing"), 2, "nothing"),
    (("serve", "ingest", "--port", "99999"), 2, "--port"),
    (("remember",), 2, "remember"),
]


@pytest.mark.parametrize(
    ("arguments", "code", "names"), BAD, ids=lambda v: " ".join(v)[:60] if isinstance(v, tuple) else None
)
def test_bad_input_is_named_and_stores_nothing(
    calmem: Run, memory: Memory, settings: Settings, arguments: tuple[str, ...], code: int, names: str
) -> None:
    memory.record(user_id="ada", session_id="s1", role="user", content="mine", message_id="m-ada")
    memory.record(user_id="bob", session_id="of-bob", role="user", content="his", message_id="m-bob")
    before = rows(settings)

    answer = calmem(*arguments)

    assert answer.code == code
    assert names in answer.err
    assert "Traceback" not in answer.err
    assert answer.out == ""
    assert rows(settings) == before


@pytest.mark.parametrize(
    ("name", "value", "command"),
    [
        ("CALMEM_POOL_SIZE", "many", "stats"),
        ("CALMEM_POOL_SIZE", "0", "stats"),
        ("CALMEM_LOG_LEVEL", "loud", "stats"),
        ("CALMEM_DATABASE_URL", "secret-nonsense", "stats"),
        ("CALMEM_DATABASE_URL", "secret-nonsense", "db migrate"),
        ("CALMEM_DATABASE_URL", "", "stats"),
        ("CALMEM_DATABASE_URL", "", "db migrate"),
        ("CALMEM_REDIS_URL", "secret-nonsense", "failed retry --all"),
    ],
)
def test_a_wrong_setting_is_named_and_not_repeated(calmem: Run, name: str, value: str, command: str) -> None:
    answer = calmem(*command.split(), **{name: value})

    assert answer.code in (1, 2)
    assert name in answer.err
    assert "Traceback" not in answer.err
    assert "secret" not in answer.err


@pytest.mark.parametrize("command", ["stats", "db migrate", "worker --burst"])
def test_a_database_that_is_away_is_said_in_one_line(calmem: Run, command: str) -> None:
    away = f"postgresql://ada:secret@127.0.0.1:{free_ports(1)[0]}/calmem"

    answer = calmem(*command.split(), CALMEM_DATABASE_URL=away, CALMEM_POOL_WAIT_SECONDS="1")

    assert answer.code == 1
    assert "cannot be reached" in answer.err
    assert "secret" not in answer.err
    assert "Traceback" not in answer.err


def test_an_unmigrated_database_says_what_to_do(calmem: Run, empty_database_url: str) -> None:
    answer = calmem("stats", CALMEM_DATABASE_URL=empty_database_url)
    assert answer.code == 1
    assert "calmem db migrate" in answer.err

    assert calmem("db", "migrate", "--json").json["applied"]
    assert calmem("db", "migrate").out == "up to date\n"
    assert calmem("stats", "--json").json["messages"] == 0


def test_facts_from_set_to_forgotten(calmem: Run) -> None:
    place = ("--user", "ada", "--session", "s1")
    assert calmem("facts", "set", *place, "colour", "green").out == "stored\n"
    assert calmem("facts", "set", *place, "--json", "colour", "blue").json["value"] == "blue"
    assert [fact["value"] for fact in calmem("facts", "list", "--user", "ada", "--json").json] == ["blue"]
    assert [old["value"] for old in calmem("facts", "history", *place, "--json", "colour").json] == ["green"]
    assert calmem("facts", "forget", *place, "--json", "colour").json == {"removed": {"facts": 1}}
    assert calmem("facts", "list", "--user", "ada", "--json").json == []


def test_what_is_recorded_is_found_listed_and_deleted(calmem: Run, memory: Memory) -> None:
    memory.record(user_id="ada", session_id="s1", role="user", content="The gate is green.", message_id="m1")

    found = calmem("search", "--user", "ada", "--json", "green gate").json
    assert [item["message_ids"] for item in found] == [["m1"]]
    recalled = calmem("recall", "--user", "ada", "--session", "s2", "--json", "green gate").json
    assert "The gate is green." in recalled["block"]
    assert recalled["degraded"] is None
    assert [one["session_id"] for one in calmem("sessions", "list", "--user", "ada", "--json").json] == ["s1"]
    shown = calmem("messages", "list", "--user", "ada", "--session", "s1", "--json").json
    assert [one["content"] for one in shown] == ["The gate is green."]
    assert calmem("messages", "delete", "--user", "ada", "--json", "m1").json["removed"]["messages"] == 1
    assert calmem("users", "set", "--user", "ada", "--time-zone", "Asia/Shanghai").json["time_zone"] == "Asia/Shanghai"
    assert calmem("users", "get", "--user", "ada").json["memory"] == "on"
    assert calmem("users", "delete", "--yes", "--user", "ada", "--json").json["removed"]["users"] == 1


def test_deleting_asks_first(calmem: Run, memory: Memory, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.record(user_id="ada", session_id="s1", role="user", content="stays")
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _prompt: "n")

    assert calmem("users", "delete", "--user", "ada").code == 1
    assert rows(settings)["messages"] == 1


def test_import_twice_doubles_nothing(calmem: Run, settings: Settings, tmp_path: Path) -> None:
    lines = [line(content=f"turn {n}", message_id=f"m{n}" if n % 2 else None) for n in range(1_203)]
    file = history(tmp_path / "h.jsonl", lines)

    first, second = calmem("import", "--json", file), calmem("import", "--json", file)

    assert (first.code, second.code) == (0, 0)
    assert (first.json["recorded"], first.json["already there"]) == (1_203, 0)
    assert (second.json["recorded"], second.json["already there"]) == (0, 1_203)
    assert rows(settings)["messages"] == 1_203


def test_import_names_bad_lines_and_keeps_the_rest(calmem: Run, settings: Settings, tmp_path: Path) -> None:
    lines = [
        line(message_id="m1"),
        "not json",
        line(message_id="m2", role="robot"),
        "",
        "[1, 2]",
        line(message_id="m3", created_at="2025-01-01T00:00:00"),
        line(message_id="m1", content="another content"),
        line(message_id="m4", colour="green"),
        line(message_id="m5"),
    ]
    answer = calmem("import", "--json", history(tmp_path / "h.jsonl", lines))

    assert answer.code == 1
    told = dict(one.split(": ", 1) for one in answer.err.splitlines() if one.startswith("line "))
    assert sorted(told) == ["line 2", "line 3", "line 5", "line 6", "line 7", "line 8"]
    assert "role" in told["line 3"]
    assert "created_at" in told["line 6"]
    assert "colour" in told["line 8"]
    assert (answer.json["recorded"], answer.json["bad"]) == (2, 6)
    assert rows(settings)["messages"] == 2


def test_strict_import_ends_at_the_first_bad_line(calmem: Run, settings: Settings, tmp_path: Path) -> None:
    lines = [line(message_id="m1"), "not json", line(message_id="m2")]
    answer = calmem("import", "--strict", history(tmp_path / "h.jsonl", lines))

    assert answer.code == 2
    assert "line 2" in answer.err
    assert rows(settings)["messages"] == 1  # what came before it stays


def test_import_skips_an_endless_line(calmem: Run, settings: Settings, tmp_path: Path) -> None:
    lines = ["x" * (2 * LINE_BYTES + 5), line(message_id="m1")]
    answer = calmem("import", history(tmp_path / "h.jsonl", lines))

    assert answer.code == 1
    assert "line 1: has more than" in answer.err
    assert rows(settings)["messages"] == 1


def test_import_with_the_database_away_says_how_to_go_on(calmem: Run, tmp_path: Path) -> None:
    away = f"postgresql://ada@127.0.0.1:{free_ports(1)[0]}/calmem"
    file = history(tmp_path / "h.jsonl", [line()])

    answer = calmem("import", file, CALMEM_DATABASE_URL=away, CALMEM_POOL_WAIT_SECONDS="1")

    assert answer.code == 1
    assert "stopped after line 0" in answer.err
    assert "again" in answer.err


def test_settings_hide_secrets(calmem: Run, settings: Settings) -> None:
    listed = {one["variable"]: one for one in calmem("settings", "--json").json}

    assert len(listed) == len(fields(Settings))
    assert listed["CALMEM_LEASE_SECONDS"]["value"] == 3.0
    assert settings.database_url not in calmem("settings").out


@pytest.mark.parametrize("queries", ["not json", "{}", '{"query_id": "q", "relevant": []}', ""])
def test_eval_refuses_bad_files_before_it_starts(calmem: Run, tmp_path: Path, queries: str) -> None:
    answer = calmem(
        "eval",
        "--history", history(tmp_path / "h.jsonl", [line(message_id="m1")]),
        "--queries", history(tmp_path / "q.jsonl", [queries]),
    )  # fmt: skip

    assert answer.code == 2
    assert "q.jsonl" in answer.err


def test_eval_refuses_a_bad_budget_or_place(calmem: Run, tmp_path: Path) -> None:
    file = history(tmp_path / "h.jsonl", [line(message_id="m1")])
    files = ("--history", file, "--queries", file)

    assert "--budget" in calmem("eval", *files, "--budget", "much").err
    assert "--budget" in calmem("eval", *files, "--budget", "0").err
    assert "--json" in calmem("eval", *files, "--json", str(tmp_path / "none" / "out.json")).err
    assert "--report" in calmem("eval", *files, "--report", str(tmp_path / "none" / "out.html")).err
    assert "must end in .html" in calmem("eval", *files, "--report", str(tmp_path / "out.png")).err
    assert "--per-query" in calmem("eval", *files, "--per-query").err
    assert "--sweep" in calmem("eval", *files, "--sweep", "no_setting=1").err
    assert "--against" in calmem("eval", *files, "--against", file).err


def test_eval_measures_every_system_and_drops_its_database(calmem: Run, settings: Settings, tmp_path: Path) -> None:
    said = ["The gate is green.", "我叔叔住在成都。", "Order SF123456789 arrived <moim> broken.", "Lunch was late."]
    lines = [line(message_id=f"m{n}", content=one) for n, one in enumerate(said)]
    asked = {"user_id": "ada", "asked_at": "2025-06-01T00:00:00+00:00"}
    queries = [
        {"query_id": "q0", "query": "green gate", "relevant": ["m0"], "category": "one", **asked},
        {"query_id": "q1", "query": "叔叔住在哪里", "relevant": ["m1"], "category": "two", **asked},
        {"query_id": "q2", "query": "SF123456789", "relevant": ["m2"], "category": "two", **asked},
    ]
    out = tmp_path / "out.json"
    answer = calmem(
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


def test_eval_sweeps_compares_and_draws(calmem: Run, tmp_path: Path) -> None:
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

    answer = calmem("eval", *files, "--json", str(first), "--per-query", "--workers", "1")

    assert answer.code == 0, answer.err
    report = json.loads(first.read_text("utf-8"))
    strangers = {name: system["overall"]["strangers"] for name, system in report["systems"].items()}
    assert (strangers["full"], strangers["words"]) == (0.6667, 0.6667)
    assert report["systems"]["full"]["by_category"]["two"]["strangers"] == 1.0
    detail = {one["query_id"]: one["systems"]["full"] for one in report["queries_detail"]}
    assert (detail["q1"]["strangers"], detail["q2"]["strangers"], detail["q3"]["strangers"]) == (0.0, 1.0, 1.0)
    assert (detail["q1"]["precision@5"], detail["q1"]["budget@750"]) == (0.2, 1.0)
    assert "precision@5" in answer.out

    answer = calmem(
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
    answer = calmem("eval", *files, "--against", str(first))
    assert (answer.code, answer.out) == (2, "")
    assert "other data" in answer.err


def test_stats_show_recall_figures_of_the_retrieval_service(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics.RECALL_SECONDS.clear()  # of what ran in this process before
    for stage, seconds in (("total", 0.004), ("total", 0.004), ("total", 9.0), ("embed", 0.004)):
        metrics.RECALL_SECONDS.labels(stage).observe(seconds)
    metrics.RECALL_TIERS.labels("full").inc(3)
    page = httpx.Response(200, text=generate_latest().decode())
    monkeypatch.setattr(httpx, "get", lambda *_args, **_more: page)

    figures = read_figures("http://127.0.0.1:1/metrics")

    assert figures is not None
    assert figures.tiers["full"] >= 3
    assert figures.latency_ms["total"]["p95"] is None
    embed = figures.latency_ms["embed"]["p50"]
    assert embed is not None
    assert 2.5 <= embed <= 5


def test_stats_say_when_no_retrieval_service_answers(calmem: Run) -> None:
    assert calmem("stats", "--json").json["recall"] is None
    assert "no retrieval service answers" in calmem("stats").out


def test_data_commands_go_over_http_where_there_is_no_database(calmem: Run, settings: Settings, tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    turn = {
        "user_id": "mei",
        "session_id": "s1",
        "role": "user",
        "content": "We decided on SQLite.",
        "message_id": "m1",
    }
    history.write_text(json.dumps(turn), "utf-8")
    with services(settings) as opened:
        elsewhere = {
            "CALMEM_DATABASE_URL": "",
            "CALMEM_REDIS_URL": "",
            "CALMEM_INGEST_URL": str(opened.ingest.base_url),
            "CALMEM_RETRIEVAL_URL": str(opened.retrieval.base_url),
        }
        imported = calmem("import", str(history), "--json", **elsewhere)
        recalled = calmem("recall", "--user", "mei", "--session", "s2", "SQLite", "--json")
        refused = calmem("sessions", "list", "--user", "never")
        calmem("facts", "set", "--user", "mei", "--session", "s1", "diet", "vegan")
        calmem("facts", "set", "--user", "mei", "--session", "s1", "diet", "no walnuts")
        history_of = calmem("facts", "history", "--user", "mei", "--session", "s1", "diet", "--json")

    assert (imported.code, imported.json["recorded"]) == (0, 1)
    assert "We decided on SQLite." in recalled.json["block"]
    assert (refused.code, "user_id: no such user" in refused.err) == (1, True)
    assert [version["value"] for version in history_of.json] == ["vegan"]
