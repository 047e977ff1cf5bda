"""`calmem reindex`: what it prints, and what it says to bad input."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import generate_latest

from calmem.memory import Memory
from calmem.settings import Settings
from tests.support.cli import Run
from tests.support.http import Services
from tests.support.processes import running
from tests.support.reindexing import work


@pytest.fixture
def three_messages(memory: Memory, settings: Settings) -> None:
    for number in range(3):
        memory.record(user_id="ada", session_id="s1", role="user", content=f"Note {number} about the garden gate.")
    work(settings)


@pytest.mark.usefixtures("three_messages")
def test_from_start_to_finish(run: Run, settings: Settings) -> None:
    begun = run("reindex", "--chunking", "500/100", "--no-switch", "--json")
    assert begun.code == 0, begun.err
    (new,) = begun.json["others"]
    assert begun.json["active"]["index_no"] == 1
    assert {name: new[name] for name in ("index_no", "state", "chunk_chars", "overlap_chars", "messages", "done")} == {
        "index_no": 2,
        "state": "building",
        "chunk_chars": 500,
        "overlap_chars": 100,
        "messages": 3,
        "done": 0,
    }
    assert (new["complete"], new["switches"]) == (False, False)
    assert "`calmem reindex resume`" in run("reindex", "pause").out
    assert "0 of 3 messages" in run("reindex", "resume").out
    refused = run("reindex", "switch")
    assert (refused.code, refused.out) == (1, "")
    assert "not complete" in refused.err
    work(settings)
    assert "complete: `calmem reindex switch`" in run("reindex").out
    assert run("reindex", "switch", "--json").json["active"]["index_no"] == 2
    assert run("reindex", "--rollback", "--json").json["active"]["index_no"] == 1
    assert run("reindex", "switch", "--json").json["active"]["index_no"] == 2
    assert "is being removed" in run("reindex", "finish").out
    work(settings)
    assert run("reindex", "status", "--json").json["others"] == []


@pytest.mark.usefixtures("three_messages")
def test_watch_shows_how_it_goes_until_recall_went_over(run: Run, settings: Settings, tmp_path: Path) -> None:
    assert "0 of 3 messages" in run("reindex", "start", "--chunking", "500/100").out
    with running(["reindex", "--watch"], settings, tmp_path / "watch.log", ready="0 of 3 messages\n") as watch:
        work(settings)
        assert watch.wait() == 0
        last = watch.text().splitlines()[-2:]
    assert last[0].split()[:2] == ["2", "active"]
    assert last[1].split()[:2] == ["1", "kept"]


def test_bad_input_is_named(run: Run) -> None:
    for arguments, said in (
        (("--chunking", "500"), "CHARS/OVERLAP"),
        (("--chunking", "500/500"), "overlap must be smaller"),
        (("--no-switch",), "--model NAME"),
        (("--rollback", "--chunking", "500/100"), "--rollback"),
        (("--watch", "status"), "behind the command"),
        (("--chunking", "500/100", "--min-cosine", "2"), "min_cosine"),
    ):
        answer = run("reindex", *arguments)
        assert (answer.code, answer.out) == (2, ""), arguments
        assert said in answer.err
    nothing = run("reindex", "--rollback")
    assert nothing.code == 1
    assert "no index beside" in nothing.err


@pytest.mark.usefixtures("three_messages")
def test_metrics_and_stats_show_it(run: Run, calmem: Services) -> None:
    run("reindex", "--chunking", "500/100")
    shown = calmem.retrieval.get("/metrics").text
    assert "calmem_reindex_messages 3.0" in shown
    assert "calmem_reindex_done_messages 0.0" in shown
    assert 'calmem_reindex_state{state="building"} 1.0' in shown
    assert "calmem_reindex_seconds_left NaN" in shown
    run("reindex", "cancel")
    assert 'calmem_reindex_state{state="building"} 0.0' in calmem.retrieval.get("/metrics").text
    assert b"calmem_vectors_reused_total" in generate_latest()
    assert run("stats", "--json").json["pending_reindex"] == 0
