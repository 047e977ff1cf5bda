"""Leases go by the database's clock: workers whose own clocks are wrong by an hour, either way, change nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from calmem.memory import Memory
from calmem.settings import Settings
from tests.support.processes import Process, eventually
from tests.support.rows import rows

WRONG = ["-m", "tests.support.wrong_clock"]
HELD, OTHERS = 10, 5


def say(memory: Memory, count: int, user: str) -> None:
    turn = {"user_id": user, "session_id": user, "role": "user"}
    memory.record_many([{**turn, "content": f"Turn {number} about the garden."} for number in range(count)])


def wrong_by(process: Process) -> timedelta:
    """How wrong the process's clock was when it started, to the minute or so."""
    found = re.search(r"clock says (\S+)", process.text())
    assert found, process.text()
    return datetime.fromisoformat(found[1]) - datetime.now(UTC)


@pytest.mark.parametrize(("holders", "others"), [(3_600, -3_600), (-3_600, 3_600)])
def test_wrong_clocks(memory: Memory, settings: Settings, tmp_path: Path, holders: int, others: int) -> None:
    patient = replace(settings, lease_seconds=600.0)
    gate = tmp_path / "gate"
    say(memory, HELD, "ada")
    gated = [*WRONG, str(holders), "tests.support.odd_worker", "--gate", str(gate)]
    holder = Process(gated, patient, tmp_path / "holder.log")
    other = None
    try:
        eventually(gate.with_suffix(".waiting").exists, "the batch is in the first worker's hands")
        assert abs(wrong_by(holder)) > timedelta(minutes=30)
        with psycopg.connect(settings.database_url) as conn:
            left = "extract(epoch FROM lease_until - clock_timestamp())"
            held = conn.execute(f"SELECT message_no, lease_token, {left} FROM index_tasks".encode()).fetchall()
        assert len(held) == HELD
        assert all(300 < seconds <= 600 for _, _, seconds in held)

        say(memory, OTHERS, "bob")
        command = [*WRONG, str(others), "calmem_services.cli.main", "worker"]
        other = Process(command, patient, tmp_path / "other.log")
        eventually(lambda: rows(settings)["vectors"] == OTHERS, "the other worker indexed what was free")
        assert abs(wrong_by(other)) > timedelta(minutes=30)
        with psycopg.connect(settings.database_url) as conn:
            kept = conn.execute("SELECT message_no, lease_token, attempts FROM index_tasks").fetchall()
            assert sorted(kept) == sorted((no, token, 1) for no, token, _ in held)
            # More than ten minutes, played by the only clock that counts.
            conn.execute("UPDATE index_tasks SET lease_until = lease_until - interval '11 minutes'")
        eventually(lambda: rows(settings)["index_tasks"] == 0, "the other worker took over what had run out")
        gate.touch()
        eventually(lambda: '"messages_indexed"' in holder.text(), "the first worker is done")
        assert f'"count": 0, "claimed": {HELD}' in holder.text()
    finally:
        for process in (holder, other):
            if process is not None:
                process.kill()
    counts = rows(settings)
    assert counts["messages"] == counts["chunks"] == counts["vectors"] == HELD + OTHERS
