"""`calmem import` into a real database: formats, order, and an import that is killed."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from calmem.memory import Memory
from calmem.model import Message
from calmem.models import Models
from calmem.queueing import WakeUps
from calmem.settings import Settings
from calmem.storage.pool import Database
from calmem_services.local.stack import environment
from calmem_workers.index import Drainer
from tests.support.processes import eventually, running

DATA = Path(__file__).parents[1] / "data" / "imports"
COMMAND = ["-m", "calmem_services.cli.main", "import"]


def run(settings: Settings, *arguments: str | Path, stdin: bytes = b"") -> tuple[int, Any, str]:
    """Exit code, the JSON printed (None: none), stderr."""
    done = subprocess.run(
        [sys.executable, *COMMAND, "--json", *map(str, arguments)],
        env=environment(settings), input=stdin, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr.decode()


def sessions(memory: Memory, user: str) -> list[list[Message]]:
    found, _ = memory.sessions(user)
    return [memory.messages(user, one.session_id)[0] for one in found]


def said(messages: Sequence[Message]) -> list[tuple[str, str]]:
    return [(one.role, one.content) for one in messages]


def turns(count: int, *, ids: bool = True, users: int = 7) -> list[str]:
    """Lines of several users, the numbers of each session rising through the file."""
    return [
        json.dumps(
            {"user_id": f"u{n % users}", "session_id": f"s{n % users}", "role": "user", "content": f"turn {n}"}
            | ({"message_id": f"m{n}"} if ids else {})
        )
        for n in range(count)
    ]


def in_order(settings: Settings) -> list[tuple[str, list[int]]]:
    """Per session the numbers of its turns, in the order of seq, once each row has its own seq from 1 on."""
    with psycopg.connect(settings.database_url) as conn:
        rows = conn.execute(
            "SELECT s.session_id, array_agg(m.content ORDER BY m.seq), max(m.seq) FROM messages m "
            "JOIN sessions s USING (user_no, session_no) GROUP BY 1 ORDER BY 1"
        ).fetchall()
    assert all(last == len(contents) for _, contents, last in rows)
    return [(session, [int(content.split()[1]) for content in contents]) for session, contents, _ in rows]


def scalar(settings: Settings, sql: str) -> int:
    with psycopg.connect(settings.database_url) as conn:
        row = conn.execute(sql.encode()).fetchone()
        assert row is not None
        return int(row[0])


def test_chatgpt_follows_the_branch_that_was_kept(settings: Settings, memory: Memory) -> None:
    code, counts, err = run(settings, "--user", "mei", DATA / "chatgpt.json")

    assert code == 0, err
    assert "format: chatgpt" in err
    stock, garden = sessions(memory, "mei")
    assert said(stock) == [
        ("user", "[image]\nWhich database for the stock on this list?"),
        ("tool", "412 rows"),
        ("assistant", 'SQLite is enough for 412 rows [or more], "really" {yes}.'),
    ]
    assert stock[0].created_at.isoformat() == "2025-01-01T10:01:40.250000+00:00"
    assert stock[2].created_at == stock[1].created_at  # without a time of its own
    assert said(garden) == [("user", "The roses by the gate flower in May.")]
    assert (counts["recorded"], counts["left out"], counts["bad"]) == (4, 6, 0)


def test_the_same_export_for_two_users(settings: Settings, memory: Memory) -> None:
    for user in ("mei", "ada", "mei"):
        code, counts, err = run(settings, "--user", user, DATA / "chatgpt.json")
        assert code == 0, err

    assert counts["already there"] == 4
    assert [said(one) for one in sessions(memory, "mei")] == [said(one) for one in sessions(memory, "ada")]


def test_claude_keeps_what_was_said(settings: Settings, memory: Memory) -> None:
    code, counts, err = run(settings, "--user", "mei", DATA / "claude.json")

    assert code == 0, err
    assert [said(one) for one in sessions(memory, "mei")] == [
        [
            ("user", "How long does rye dough rest?\n[file: recipe.txt]\n[file: dough.png]"),
            ("assistant", "Twelve hours.\n[tool_use]"),
            ("user", "Thank you."),
        ]
    ]
    assert counts["left out"] == 1


@pytest.mark.parametrize("name", ["openai.json", "openai.jsonl"])
def test_openai_lists_twice(settings: Settings, memory: Memory, name: str) -> None:
    at = "2025-03-01T10:00:00+02:00"
    first = run(settings, "--user", "mei", "--created-at", at, DATA / name)
    second = run(settings, "--user", "mei", "--format", "openai", DATA / name)

    assert (first[0], second[0]) == (0, 0), first[2]
    assert second[1]["recorded"] == 0
    found = sessions(memory, "mei")
    if name == "openai.json":
        assert [said(one) for one in found] == [
            [
                ("user", "What is on this?\n[image]"),
                ("assistant", ""),
                ("tool", "A loaf of rye."),
                ("assistant", "A loaf of rye."),
            ]
        ]
    else:
        assert sorted(said(one) for one in found) == [
            [("user", "Hello."), ("assistant", "Good day.")],
            [("user", "ok"), ("user", "ok")],
        ]
    assert {one.created_at.isoformat()[:10] for session in found for one in session} <= {"2025-03-01", "2025-01-02"}


def test_an_export_needs_a_user(settings: Settings) -> None:
    code, _, err = run(settings, DATA / "claude.json")

    assert code == 2
    assert "--user" in err


def test_a_session_named_by_another_user_is_refused_clearly(settings: Settings, memory: Memory) -> None:
    memory.record(user_id="ada", session_id="s", role="user", content="hers")
    code, counts, err = run(settings, "--user", "mei", "--session", "s", DATA / "openai.json")

    assert code == 1
    assert counts["bad"] == 4
    assert "element 2: session_id: this session is not this user's" in err


def test_gz_and_stdin_and_odd_bytes(settings: Settings, memory: Memory, tmp_path: Path) -> None:
    lines = [
        b'\xef\xbb\xbf{"user_id": "u", "session_id": "s", "role": "user", "content": "one \\ud83c \\u0000."}\r',
        b'{"user_id": "u", "session_id": "s", "role": "user", "content": "\xff"}\r',
        b'{"user_id": "u", "session_id": "s", "role": "user", "content": "' + b"x" * 1_048_577 + b'"}\r',
        b'{"user_id": "u", "session_id": "s", "role": "user", "content": "two"}',
    ]
    file = tmp_path / "h.jsonl.gz"
    file.write_bytes(gzip.compress(b"\n".join(lines)))

    errors = tmp_path / "errors.jsonl"
    code, counts, _ = run(settings, "--errors", errors, file)
    piped = run(settings, "-", stdin=b"\n".join(lines))

    assert code == 1
    assert (counts["recorded"], counts["bad"]) == (2, 2)
    told = {one["where"]: one["reason"] for one in map(json.loads, errors.read_text().splitlines())}
    assert "UTF-8" in told["line 2"]
    assert "content: has 1048577 bytes" in told["line 3"]
    assert (piped[1]["already there"], piped[1]["bad"]) == (2, 2)
    assert said(sessions(memory, "u")[0]) == [("user", "one \ufffd ."), ("user", "two")]


def test_a_file_for_bad_lines_that_cannot_be_written_is_named(settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    file.write_text(turns(1)[0])
    code, counts, err = run(settings, "--errors", tmp_path / "nowhere" / "errors.jsonl", file)

    assert (code, counts) == (2, None)
    assert "--errors: cannot be written: No such file or directory" in err
    assert "Traceback" not in err


def test_only_some_bad_lines_are_shown(settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    file.write_text("no\n" * 50 + turns(1)[0])
    code, counts, err = run(settings, file)

    assert (code, counts["bad"], counts["recorded"]) == (1, 50, 1)
    assert err.count("is not JSON") == 20
    assert "--errors" in err


def test_strict_keeps_what_was_before_and_nothing_after(settings: Settings, tmp_path: Path) -> None:
    lines = turns(900)
    lines[400] = lines[400].replace("user_id", "user")
    file = tmp_path / "h.jsonl"
    file.write_text("\n".join(lines))
    code, _, err = run(settings, "--strict", file)

    assert code == 2
    assert "line 401: user: is not a field" in err
    assert sum(len(numbers) for _, numbers in in_order(settings)) == 400


def test_killed_in_the_middle_it_goes_on_in_order(settings: Settings, tmp_path: Path) -> None:
    count = 14_000
    file = tmp_path / "h.jsonl"
    file.write_text("\n".join(turns(count, ids=False)))
    with running(["import", "--parallel", "3", str(file)], settings, tmp_path / "log") as process:
        eventually(lambda: scalar(settings, "SELECT count(*) FROM import_checkpoints") == 1, "a checkpoint")
        process.kill()

    claimed = scalar(settings, "SELECT units FROM import_checkpoints")
    stored = {number for _, numbers in in_order(settings) for number in numbers}
    assert set(range(claimed)) <= stored < set(range(count))
    code, counts, err = run(settings, "--parallel", "3", file)

    assert code == 0, err
    assert (counts["resumed after"], counts["lines"]) == (claimed, count - claimed)
    assert counts["recorded"] == count - len(stored)
    assert in_order(settings) == [(f"s{user}", list(range(user, count, 7))) for user in range(7)]
    assert scalar(settings, "SELECT count(*) FROM import_checkpoints") == 0


def test_another_file_under_the_same_name_starts_over(settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    file.write_text("\n".join(turns(6_000)))
    lines = turns(6_000)
    lines[-1] = "x"
    file.write_text("\n".join(lines))
    assert run(settings, "--strict", file)[0] == 2  # a checkpoint stays
    assert scalar(settings, "SELECT units FROM import_checkpoints") == 5_000

    lines[0] = json.dumps({"user_id": "new", "session_id": "new", "role": "user", "content": "turn 0"})
    file.write_text("\n".join(lines[:-1]))
    code, counts, err = run(settings, file)

    assert code == 0, err
    assert "another one" in err
    assert (counts["resumed after"], counts["recorded"], counts["already there"]) == (0, 1, 5_998)


def test_a_live_message_is_indexed_before_the_backlog(settings: Settings, memory: Memory, tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    file.write_text("\n".join(turns(3_000)))
    pending = "SELECT count(*) FROM index_tasks WHERE lane = 'backfill'"
    live = "SELECT count(*) FROM index_tasks t JOIN messages m USING (user_no, message_no) WHERE m.message_id = 'live'"
    with running(["import", "--rate", "400", str(file)], settings, tmp_path / "log") as process:
        eventually(lambda: scalar(settings, pending) > 300, "a backlog")
        memory.record(user_id="ada", session_id="live", role="user", content="The gate is green.", message_id="live")
        assert process.running
        with Database(settings) as database:
            drainer = Drainer(database, settings, Models(settings), WakeUps(""))
            drainer.load_model()
            drainer._batch()  # one batch, as a worker makes them

    assert scalar(settings, live) == 0
    assert scalar(settings, "SELECT count(*) FROM vectors") == 1
    assert scalar(settings, pending) > 300


_MEASURE = """
import sys
from pathlib import Path
from calmem_services.cli.main import cli
def peak():
    return int(next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith("VmHWM")).split()[1])
cli(["import", sys.argv[1]], standalone_mode=False)
before = peak()
try:
    cli(["import", "--user", "u0", "--format", sys.argv[2], sys.argv[3]], standalone_mode=False)
except SystemExit:
    pass
print(peak() - before)
"""


@pytest.mark.parametrize(
    ("format_", "before", "after"),
    [("jsonl", b"", b"\n" + turns(1)[0].encode()), ("openai", b'[{"a": "', b'"}, {"role": "user", "content": "end"}]')],
)
def test_memory_does_not_grow_with_the_file(
    settings: Settings, tmp_path: Path, format_: str, before: bytes, after: bytes
) -> None:
    """A line, or an element of a list, of 160 MB is skipped without being held, and what follows is recorded."""
    small, large = tmp_path / "small.jsonl", tmp_path / "large"
    small.write_text(turns(2)[1])
    with large.open("wb") as out:
        out.write(before)
        for _ in range(160):
            out.write(b"x" * 1_000_000)
        out.write(after)
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(small), format_, str(large)],
        env=environment(settings), capture_output=True, timeout=120, check=False,
    )  # fmt: skip

    assert b" 1: has more than" in done.stderr, done.stderr
    grown_kilobytes = int(done.stdout.split()[-1])
    assert grown_kilobytes * 1024 < os.path.getsize(large) / 2
    assert scalar(settings, "SELECT count(*) FROM messages") == 2
