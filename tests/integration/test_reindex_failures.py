"""What goes wrong while an index is built: it holds up neither the others nor recall."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from calmem.model import Lane, SearchIndex
from calmem.settings import Settings
from calmem.storage import backlog, tasks
from calmem.storage.pool import Database
from tests.support.reindexing import PARROT, best, notes, record, state, steer, vectors, work


def test_a_message_that_fails_in_the_new_index_blocks_nothing(settings: Settings, tiny: str) -> None:
    once = replace(settings, max_attempts=1)
    record(once, *notes(5), "A POISON that only one model cannot bear.")
    work(once)

    def look(index: SearchIndex, texts: Sequence[str]) -> None:
        if index.dimension == 128 and any("POISON" in text for text in texts):
            raise ValueError("the runtime met a text that it cannot embed")

    steer(once, lambda r: r.start(model_path=tiny))
    work(once, look)
    assert state(once)[0].index_no == 2
    assert vectors(once) == {(1, 384): 6, (2, 128): 5}
    with Database(once) as database, database.connection() as conn:
        assert [(failed.index_no, failed.attempts) for _, failed in tasks.list_failed(conn, limit=9)] == [(2, 1)]
        assert backlog.queue_state(conn).pending == 0
    assert best(once, "poison bear", "words") == ["A POISON that only one model cannot bear."]


def test_recall_does_not_go_over_by_itself_to_an_index_without_vectors(settings: Settings, tiny: str) -> None:
    once = replace(settings, max_attempts=1)
    record(once, *notes(5))
    work(once)
    steer(once, lambda r: r.start(model_path=tiny))

    def look(index: SearchIndex, _texts: Sequence[str]) -> None:
        if index.dimension == 128:
            raise ValueError("no text at all")

    work(once, look)
    active, (new,) = state(once)
    assert (active.index_no, new.complete, new.failed, new.done) == (1, True, 5, 5)
    assert new.problem is not None
    assert "calmem failed retry" in new.problem
    with Database(once) as database, database.connection() as conn:
        tasks.retry_failed(conn, message_id=None)
    work(settings)
    assert state(once)[0].index_no == 2


def test_a_message_that_failed_in_both_indexes_is_one_when_it_is_tried_again(settings: Settings, tiny: str) -> None:
    once = replace(settings, max_attempts=1)
    record(once, *notes(2))
    steer(once, lambda r: r.start(model_path=tiny, switches=False))

    def look(_index: SearchIndex, _texts: Sequence[str]) -> None:
        raise ValueError("no text at all")

    work(once, look)
    with Database(once) as database, database.connection() as conn:
        assert sorted(failed.index_no for _, failed in tasks.list_failed(conn, limit=9)) == [1, 1, 2, 2]
        assert tasks.retry_failed(conn, message_id=None) == (2, {Lane.LIVE, Lane.REINDEX})


def test_a_worker_without_the_new_model_goes_on_with_the_active_index(
    settings: Settings, tiny: str, tmp_path: Path
) -> None:
    steer(settings, lambda r: r.start(model_path=tiny))
    (tmp_path / "tiny").rename(tmp_path / "elsewhere")
    record(settings, PARROT)
    assert work(settings) == 1
    active, (new,) = state(settings)
    assert (active.index_no, new.problem is not None) == (1, True)
    assert best(settings, PARROT, "dense") == [PARROT]
    (tmp_path / "elsewhere").rename(tmp_path / "tiny")
    assert work(settings) == 1
    assert state(settings)[0].index_no == 2
    with Database(settings) as database, database.connection() as conn:
        assert tasks.list_failed(conn, limit=9) == []
