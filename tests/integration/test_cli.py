"""The `calmem` command against real servers: what it prints, and what it says to bad input."""

from __future__ import annotations

import json
import socket
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from calmem import metrics
from calmem.memory import Memory
from calmem.settings import Settings
from calmem_services.cli.main import cli
from calmem_services.http.figures import figures_url, read_figures
from calmem_services.importing.running import LINE_BYTES
from calmem_services.local.ports import free_ports
from tests.support.cli import Run, history, line
from tests.support.http import services
from tests.support.rows import rows
from tests.support.serving import needs_ipv6


def test_every_command_explains_itself(run: Run) -> None:
    def walk(group: Any, path: tuple[str, ...]) -> list[tuple[str, ...]]:
        found = [path]
        for name, command in getattr(group, "commands", {}).items():
            found += walk(command, (*path, name))
        return found

    for path in walk(cli, ()):
        answer = run(*path, "--help")
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
    run: Run, memory: Memory, settings: Settings, arguments: tuple[str, ...], code: int, names: str
) -> None:
    memory.record(user_id="ada", session_id="s1", role="user", content="mine", message_id="m-ada")
    memory.record(user_id="bob", session_id="of-bob", role="user", content="his", message_id="m-bob")
    before = rows(settings)

    answer = run(*arguments)

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
        ("CALMEM_POOL_SIZE", "5.5", "stats"),
        ("CALMEM_RECALL_DEADLINE_MS", "2147483648", "stats"),
        ("CALMEM_LEASE_SECONDS", "nan", "stats"),
        ("CALMEM_LOG_LEVEL", "loud", "stats"),
        ("CALMEM_DATABASE_URL", "secret-nonsense", "stats"),
        ("CALMEM_DATABASE_URL", "secret-nonsense", "db migrate"),
        ("CALMEM_DATABASE_URL", "", "stats"),
        ("CALMEM_DATABASE_URL", "", "db migrate"),
        ("CALMEM_REDIS_URL", "secret-nonsense", "failed retry --all"),
    ],
)
def test_a_wrong_setting_is_named_and_not_repeated(run: Run, name: str, value: str, command: str) -> None:
    answer = run(*command.split(), **{name: value})

    assert answer.code in (1, 2)
    assert name in answer.err
    assert "Traceback" not in answer.err
    assert "secret" not in answer.err


@pytest.mark.parametrize("command", ["serve ingest", "serve retrieval"])
def test_a_taken_port_is_said_in_one_line(run: Run, command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = run(*command.split(), "--port", str(port))
    assert answer.code == 1
    assert answer.err == f"calmem: 127.0.0.1:{port} is in use; stop what listens there, or give another --port\n"


@pytest.mark.parametrize("command", ["stats", "db migrate", "worker --burst"])
def test_a_database_that_is_away_is_said_in_one_line(run: Run, command: str) -> None:
    away = f"postgresql://ada:secret@127.0.0.1:{free_ports(1)[0]}/calmem"

    answer = run(*command.split(), CALMEM_DATABASE_URL=away, CALMEM_POOL_WAIT_SECONDS="1")

    assert answer.code == 1
    assert "cannot be reached" in answer.err
    assert "secret" not in answer.err
    assert "Traceback" not in answer.err


def test_an_unmigrated_database_says_what_to_do(run: Run, empty_database_url: str) -> None:
    answer = run("stats", CALMEM_DATABASE_URL=empty_database_url)
    assert answer.code == 1
    assert "calmem db migrate" in answer.err

    assert run("db", "migrate", "--json").json["applied"]
    assert run("db", "migrate").out == "up to date\n"
    assert run("stats", "--json").json["messages"] == 0


def test_facts_from_set_to_forgotten(run: Run) -> None:
    place = ("--user", "ada", "--session", "s1")
    assert run("facts", "set", *place, "colour", "green").out == "stored\n"
    assert run("facts", "set", *place, "--json", "colour", "blue").json["value"] == "blue"
    assert [fact["value"] for fact in run("facts", "list", "--user", "ada", "--json").json] == ["blue"]
    assert [old["value"] for old in run("facts", "history", *place, "--json", "colour").json] == ["green"]
    assert run("facts", "forget", *place, "--json", "colour").json == {"removed": {"facts": 1}}
    assert run("facts", "list", "--user", "ada", "--json").json == []


def test_what_is_recorded_is_found_listed_and_deleted(run: Run, memory: Memory) -> None:
    memory.record(user_id="ada", session_id="s1", role="user", content="The gate is green.", message_id="m1")

    found = run("search", "--user", "ada", "--json", "green gate").json
    assert [item["message_ids"] for item in found] == [["m1"]]
    recalled = run("recall", "--user", "ada", "--session", "s2", "--json", "green gate").json
    assert "The gate is green." in recalled["block"]
    assert recalled["degraded"] is None
    assert [one["session_id"] for one in run("sessions", "list", "--user", "ada", "--json").json] == ["s1"]
    shown = run("messages", "list", "--user", "ada", "--session", "s1", "--json").json
    assert [one["content"] for one in shown] == ["The gate is green."]
    assert run("messages", "delete", "--user", "ada", "--json", "m1").json["removed"]["messages"] == 1
    assert run("users", "set", "--user", "ada", "--time-zone", "Asia/Shanghai").json["time_zone"] == "Asia/Shanghai"
    assert run("users", "get", "--user", "ada").json["memory"] == "on"
    assert run("users", "delete", "--yes", "--user", "ada", "--json").json["removed"]["users"] == 1


def test_deleting_asks_first(run: Run, memory: Memory, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.record(user_id="ada", session_id="s1", role="user", content="stays")
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _prompt: "n")

    assert run("users", "delete", "--user", "ada").code == 1
    assert rows(settings)["messages"] == 1


def test_import_twice_doubles_nothing(run: Run, settings: Settings, tmp_path: Path) -> None:
    lines = [line(content=f"turn {n}", message_id=f"m{n}" if n % 2 else None) for n in range(1_203)]
    file = history(tmp_path / "h.jsonl", lines)

    first, second = run("import", "--json", file), run("import", "--json", file)

    assert (first.code, second.code) == (0, 0)
    assert (first.json["recorded"], first.json["already there"]) == (1_203, 0)
    assert (second.json["recorded"], second.json["already there"]) == (0, 1_203)
    assert rows(settings)["messages"] == 1_203


def test_import_names_bad_lines_and_keeps_the_rest(run: Run, settings: Settings, tmp_path: Path) -> None:
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
    answer = run("import", "--json", history(tmp_path / "h.jsonl", lines))

    assert answer.code == 1
    told = dict(one.split(": ", 1) for one in answer.err.splitlines() if one.startswith("line "))
    assert sorted(told) == ["line 2", "line 3", "line 5", "line 6", "line 7", "line 8"]
    assert "role" in told["line 3"]
    assert "created_at" in told["line 6"]
    assert "colour" in told["line 8"]
    assert (answer.json["recorded"], answer.json["bad"]) == (2, 6)
    assert rows(settings)["messages"] == 2


def test_strict_import_ends_at_the_first_bad_line(run: Run, settings: Settings, tmp_path: Path) -> None:
    lines = [line(message_id="m1"), "not json", line(message_id="m2")]
    answer = run("import", "--strict", history(tmp_path / "h.jsonl", lines))

    assert answer.code == 2
    assert "line 2" in answer.err
    assert rows(settings)["messages"] == 1  # what came before it stays


def test_import_skips_an_endless_line(run: Run, settings: Settings, tmp_path: Path) -> None:
    lines = ["x" * (2 * LINE_BYTES + 5), line(message_id="m1")]
    answer = run("import", history(tmp_path / "h.jsonl", lines))

    assert answer.code == 1
    assert "line 1: has more than" in answer.err
    assert rows(settings)["messages"] == 1


def test_import_with_the_database_away_says_how_to_go_on(run: Run, tmp_path: Path) -> None:
    away = f"postgresql://ada@127.0.0.1:{free_ports(1)[0]}/calmem"
    file = history(tmp_path / "h.jsonl", [line()])

    answer = run("import", file, CALMEM_DATABASE_URL=away, CALMEM_POOL_WAIT_SECONDS="1")

    assert answer.code == 1
    assert "stopped after line 0" in answer.err
    assert "again" in answer.err


def test_settings_hide_secrets(run: Run, settings: Settings) -> None:
    listed = {one["variable"]: one for one in run("settings", "--json").json}

    assert len(listed) == len(fields(Settings))
    assert listed["CALMEM_LEASE_SECONDS"]["value"] == 3.0
    assert settings.database_url not in run("settings").out


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::1", marks=needs_ipv6)])
def test_stats_show_recall_figures_of_the_retrieval_service(host: str) -> None:
    metrics.RECALL_SECONDS.clear()  # of what ran in this process before
    for stage, seconds in (("total", 0.004), ("total", 0.004), ("total", 9.0), ("embed", 0.004)):
        metrics.RECALL_SECONDS.labels(stage).observe(seconds)
    metrics.RECALL_TIERS.labels("full").inc(3)
    (port,) = free_ports(1)
    served = replace(Settings(), host=host, retrieval_port=port, metrics_port=port)
    with metrics.exposed(served):
        figures = read_figures(figures_url(served))

    assert figures is not None
    assert figures.tiers["full"] >= 3
    assert figures.latency_ms["total"]["p95"] is None
    embed = figures.latency_ms["embed"]["p50"]
    assert embed is not None
    assert 2.5 <= embed <= 5


def test_stats_say_when_no_retrieval_service_answers(run: Run) -> None:
    assert run("stats", "--json").json["recall"] is None
    assert "no retrieval service answers" in run("stats").out


def test_data_commands_go_over_http_where_there_is_no_database(run: Run, settings: Settings, tmp_path: Path) -> None:
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
        imported = run("import", str(history), "--json", **elsewhere)
        recalled = run("recall", "--user", "mei", "--session", "s2", "SQLite", "--json")
        refused = run("sessions", "list", "--user", "never")
        run("facts", "set", "--user", "mei", "--session", "s1", "diet", "vegan")
        run("facts", "set", "--user", "mei", "--session", "s1", "diet", "no walnuts")
        history_of = run("facts", "history", "--user", "mei", "--session", "s1", "diet", "--json")

    assert (imported.code, imported.json["recorded"]) == (0, 1)
    assert "We decided on SQLite." in recalled.json["block"]
    assert (refused.code, "user_id: no such user" in refused.err) == (1, True)
    assert [version["value"] for version in history_of.json] == ["vegan"]
