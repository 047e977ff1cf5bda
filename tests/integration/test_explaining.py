"""A recall explained: the same answer, and for every candidate why it is in the block or not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from calmem import Memory
from calmem.explaining import Explainer
from calmem.fates import Fate
from calmem.model import Tier
from calmem.models import Models
from calmem.recall import Recaller
from calmem.settings import Settings
from calmem.storage.pool import Database
from calmem_workers.main import run_worker
from tests.support.keys import cli
from tests.support.reindexing import chunks, steer

SAID = (
    "We decided on SQLite for the stock of the shop.",
    "The stock lives in one SQLite file, and the backup copies that file every night. " * 8,
    "Roses need water in the morning.",
    "My sister plays the violin in an orchestra in Leeds.",
)
ASKED: dict[str, Any] = {
    "user_id": "ada",
    "session_id": "s2",
    "query": "Which database for the stock?",
    "context_window_capacity": 1_000,
}


@pytest.fixture
def explainer(settings: Settings) -> Iterator[Explainer]:
    with Database(settings) as database, closing(Recaller(database, settings, Models(settings))) as recaller:
        yield Explainer(database, settings, recaller)


def told(settings: Settings) -> None:
    with Memory(settings=settings) as memory:
        for number, (session, content) in enumerate(zip(("s1", "s0", "s1", "music"), SAID, strict=True), 1):
            memory.record(user_id="ada", session_id=session, role="user", content=content, message_id=f"m{number}")
    run_worker(settings, burst=True)


def test_an_explanation_is_of_the_recall_itself(settings: Settings, memory: Memory, explainer: Explainer) -> None:
    told(settings)
    for current in (0, 600, 700, 800):
        plain = memory.recall(**ASKED, current_tokens=current)
        explained = explainer.explain(**ASKED, current_tokens=current)
        assert explained.recall.block == plain.block
        assert explained.recall.items == plain.items
        assert explained.limits.tier is plain.tier
        kept = [c.item.chunk_no for c in explained.candidates if c.fates.get(plain.tier, Fate.NO_ROOM).kept]
        assert set(kept) == {item.chunk_no for item in plain.items}

    found = explainer.explain(**ASKED, current_tokens=0)
    fates = {candidate.item.message_id: candidate.fates for candidate in found.candidates}
    assert set(fates) == {"m1", "m2", "m3", "m4"}
    assert fates["m1"][Tier.FULL] is Fate.WHOLE
    assert fates["m2"][Tier.FULL] is Fate.WHOLE
    assert fates["m2"][Tier.MINIMAL] is not Fate.WHOLE  # longer than that tier's budget
    assert fates["m4"][Tier.FULL] is Fate.LOW_COSINE
    dropped = next(c.item for c in found.candidates if c.item.message_id == "m4")
    assert dropped.text == SAID[3]
    assert dropped.scores["cosine"] < settings.min_cosine


def test_why_nothing_was_kept(settings: Settings, memory: Memory, explainer: Explainer) -> None:
    told(settings)
    off_topic = explainer.explain(**{**ASKED, "query": "Explain the offside rule in football"}, current_tokens=0)
    assert {fate for c in off_topic.candidates for fate in c.fates.values()} == {Fate.NOT_ABOUT}
    one = explainer.explain(**ASKED, current_tokens=0, k=1)
    assert [c.fates[Tier.FULL] for c in one.candidates if c.item.reasons].count(Fate.WHOLE) == 1
    assert any(c.fates[Tier.FULL] is Fate.BEYOND_K for c in one.candidates)
    active = explainer.explain(**{**ASKED, "session_id": "s1"}, current_tokens=0, active_from_seq=1)
    assert active.hidden == 2
    assert not {"m1", "m3"} & {c.item.message_id for c in active.candidates}
    assert explainer.explain(**ASKED, current_tokens=900).candidates == []
    memory.put_user("ada", memory="off")
    assert explainer.explain(**ASKED, current_tokens=0).limits.tier is Tier.OFF


def test_what_is_hidden_is_counted_in_the_active_index_alone(settings: Settings, explainer: Explainer) -> None:
    told(settings)
    steer(settings, lambda r: r.start(chunk_chars=400, overlap_chars=50, switches=False))
    run_worker(settings, burst=True)
    assert set(chunks(settings)) == {1, 2}
    asked = {**ASKED, "session_id": "s1", "current_tokens": 0}
    assert explainer.explain(**asked, active_from_seq=1).hidden == 2
    assert explainer.explain(**asked, active_message_ids=["m1", "m3"]).hidden == 2


def test_the_command_line_explains(settings: Settings) -> None:
    told(settings)
    asked = ("recall", "--user", "ada", "--session", "s2", "--explain", "Which database for the stock?")
    shown = cli(settings, *asked)
    assert shown.returncode == 0, shown.stderr
    assert "what became of it" in shown.stdout
    assert "in the block" in shown.stdout
    assert "dropped: found by meaning alone" in shown.stdout
    document = json.loads(cli(settings, *asked, "--json").stdout)
    assert {one["fates"]["full"] for one in document["candidates"]} >= {"whole", "low_cosine"}
    assert document["limits"] == {"episodes": 900, "block": 1200}
