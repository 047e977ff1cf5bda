"""A new index beside the active one: recall stays right, nothing recorded is missed, every way leads back."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from calmem import embedding
from calmem.embedding import Embedder, use_adapter
from calmem.errors import Conflict, InvalidInput, ModelUnavailable
from calmem.memory import Memory
from calmem.model import IndexState, Receipt, SearchIndex
from calmem.settings import Settings
from calmem.storage import indexes, search
from calmem.storage.pool import Database
from calmem_workers import reindex
from tests.support.processes import eventually
from tests.support.reindexing import PARROT, best, chunks, notes, record, state, steer, vectors, work
from tests.support.tiny_model import write_tiny_model

KITTENS = "My daughter adores felines and has two kittens."
QUESTION = "Which pets does the girl like? cats?"  # shares no word with the answer: only a vector finds it


def test_recall_is_right_and_live_messages_are_found_before_while_and_after(settings: Settings) -> None:
    record(settings, KITTENS, *notes(40))
    assert work(settings) == 41
    assert best(settings, QUESTION, "dense") == [KITTENS]
    steer(settings, lambda r: r.start(model=use_adapter.MODEL, min_cosine=0.3))
    during: list[int] = []

    def look(index: SearchIndex, _texts: Sequence[str]) -> None:
        if index.dimension == 512 and not during:
            during.append(index.index_no)
            record(settings, PARROT)
            assert state(settings)[0].index_no == 1
            assert best(settings, QUESTION, "dense") == [KITTENS]
            assert best(settings, "hamster", "words") == [PARROT]

    work(settings, look)
    assert during == [2]
    active, (former,) = state(settings)
    assert (active.index_no, active.model, active.dimension, active.min_cosine) == (2, use_adapter.MODEL, 512, 0.3)
    assert (former.index.index_no, former.index.state) == (1, IndexState.KEPT)
    assert vectors(settings) == {(1, 384): 42, (2, 512): 42}
    assert best(settings, QUESTION, "dense") == [KITTENS]
    assert best(settings, "hamster", "words") == [PARROT]
    record(settings, "The violin is at the repair shop.")
    assert best(settings, "violin", "words") == ["The violin is at the repair shop."]
    work(settings)
    assert vectors(settings) == {(1, 384): 43, (2, 512): 43}
    assert best(settings, "Which musical instrument is being fixed?", "dense") == ["The violin is at the repair shop."]


def test_texts_that_stay_the_same_under_the_same_model_are_not_embedded_again(settings: Settings) -> None:
    long = " ".join(f"Sentence {number} tells of the long way to the harbour." for number in range(16))
    record(settings, *notes(20), long)
    work(settings)
    steer(settings, lambda r: r.start(chunk_chars=300, overlap_chars=50))
    embedded: list[str] = []
    work(settings, lambda _index, texts: embedded.extend(texts))
    assert state(settings)[0].chunk_chars == 300
    assert len(embedded) >= 3
    assert all(text in long for text in embedded)
    assert vectors(settings) == {(1, 384): 21, (2, 384): 20 + len(embedded)}
    with psycopg.connect(settings.database_url) as conn:
        same = conn.execute(
            """SELECT count(*), count(*) FILTER (WHERE a.embedding = b.embedding)
            FROM (chunks c JOIN vectors a USING (user_no, index_no, chunk_no))
            JOIN (chunks d JOIN vectors b USING (user_no, index_no, chunk_no))
            USING (message_no, start_char, end_char) WHERE c.index_no = 1 AND d.index_no = 2"""
        ).fetchone()
    assert same == (20, 20)
    assert best(settings, notes(20)[7], "dense") == [notes(20)[7]]


@pytest.mark.parametrize("dimension", [384, 128], ids=["same dimension", "another dimension"])
def test_another_model_embeds_everything_anew(settings: Settings, tmp_path: Path, dimension: int) -> None:
    record(settings, *notes(5))
    work(settings)
    other = str(write_tiny_model(tmp_path / "other", dimension, seed=7))
    found = steer(settings, lambda r: r.start(model_path=other))
    assert (found.index.model, found.index.model_path, found.index.dimension) == ("other", other, dimension)
    embedded: list[str] = []
    work(settings, lambda _index, texts: embedded.extend(texts))
    assert sorted(embedded) == sorted(notes(5))
    assert best(settings, notes(5)[3], "dense") == [notes(5)[3]]
    steer(settings, lambda r: r.rollback())
    work(settings)
    assert state(settings)[0].index_no == 1, "after a rollback it does not go over by itself again"


def test_pause_resume_switch_rollback_finish(settings: Settings, tiny: str) -> None:
    record(settings, *notes(6))
    work(settings)
    begun = steer(settings, lambda r: r.start(model_path=tiny, switches=False))
    assert (begun.messages, begun.done, begun.complete, begun.index.state) == (6, 0, False, IndexState.BUILDING)
    assert steer(settings, lambda r: r.pause()).index.state is IndexState.PAUSED
    record(settings, PARROT)
    assert work(settings) == 1
    assert vectors(settings) == {(1, 384): 7}
    with pytest.raises(Conflict, match="paused"):
        steer(settings, lambda r: r.switch())

    steer(settings, lambda r: r.resume())
    with pytest.raises(Conflict, match="not complete: 0 of 6"):
        steer(settings, lambda r: r.switch())
    assert work(settings) == 7
    active, (new,) = state(settings)
    assert (active.index_no, new.complete, new.done, new.messages) == (1, True, 7, 7)
    former = steer(settings, lambda r: r.switch())
    assert (former.index.index_no, former.index.state) == (1, IndexState.KEPT)
    assert best(settings, PARROT, "dense") == [PARROT]

    record(settings, KITTENS)
    work(settings)
    with pytest.raises(Conflict, match="finish"):
        steer(settings, lambda r: r.cancel())
    back = steer(settings, lambda r: r.rollback())
    assert (back.index.index_no, back.index.state, back.complete, back.switches) == (
        2,
        IndexState.BUILDING,
        True,
        False,
    )
    assert state(settings)[0].index_no == 1
    assert best(settings, QUESTION, "dense") == [KITTENS], "the former index was kept up to date"
    work(settings)
    assert state(settings)[0].index_no == 1
    with pytest.raises(Conflict, match="nothing to roll back"):
        steer(settings, lambda r: r.rollback())

    steer(settings, lambda r: r.switch())
    steer(settings, lambda r: r.finish())
    work(settings)
    active, others = state(settings)
    assert (active.index_no, others) == (2, [])
    assert (set(chunks(settings)), set(vectors(settings))) == ({2}, {(2, 128)})
    with pytest.raises(Conflict, match="no index beside"):
        steer(settings, lambda r: r.rollback())


def test_deleting_reaches_both_indexes(settings: Settings, tiny: str) -> None:
    record(settings, *notes(4))
    (gone,) = record(settings, PARROT)
    record(settings, *notes(3), user="bob")
    work(settings)
    steer(settings, lambda r: r.start(model_path=tiny, switches=False))
    deleted: list[Receipt] = []

    def look(index: SearchIndex, _texts: Sequence[str]) -> None:
        if index.dimension == 128 and not deleted:
            with Memory(settings=settings) as memory:
                deleted.append(memory.delete_message(user_id="ada", message_id=gone))
                deleted.append(memory.delete_user(user_id="bob"))

    work(settings, look)
    assert len(deleted) == 2
    assert chunks(settings) == {1: 4, 2: 4}
    assert vectors(settings) == {(1, 384): 4, (2, 128): 4}
    assert state(settings)[1][0].complete


def test_words_of_one_index_are_counted_in_that_one_alone(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keyed hashes of a user's words are the same in both, and a common word is looked up in a few chunks only."""
    monkeypatch.setattr(search, "COMMON", 5)
    record(settings, *notes(8))
    work(settings)
    with Memory(settings=settings) as memory:

        def found() -> list[tuple[str, dict[str, float]]]:
            items = memory.search(user_id="ada", query="garden gate", arms=("words",))
            return [(item.text, dict(item.scores)) for item in items]

        before = found()
        assert before
        steer(settings, lambda r: r.start(chunk_chars=400, overlap_chars=50, switches=False))
        work(settings)
        assert found() == before
        steer(settings, lambda r: r.switch())
        assert found() == before


def test_a_message_being_recorded_while_it_starts_is_not_missed(settings: Settings, tiny: str) -> None:
    """Its recorder looked at the indexes before the new one was there, and commits afterwards."""
    record(settings, PARROT)
    work(settings)
    starting = threading.Thread(target=steer, args=(settings, lambda r: r.start(model_path=tiny)))
    with psycopg.connect(settings.database_url) as watcher, Database(settings) as database:
        with database.connection() as conn:
            assert len(indexes.lock_in_use(conn)) == 1
            starting.start()
            waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            eventually(lambda: watcher.execute(waits).fetchone() == (1,), "the start waits for the recorder")
            conn.execute(
                """INSERT INTO messages (user_no, session_no, message_id, seq, role, content, created_at)
                SELECT user_no, session_no, 'late', 2, 'user', 'The late one.', now() FROM sessions"""
            )
        starting.join()
    work(settings)
    assert vectors(settings) == {(1, 384): 1, (2, 128): 2}


def test_what_cannot_be_started_says_why(settings: Settings, tiny: str, tmp_path: Path) -> None:
    record(settings, PARROT)
    work(settings)
    with pytest.raises(InvalidInput, match="already"):
        steer(settings, lambda r: r.start(model=settings.model))
    with pytest.raises(InvalidInput, match="already"):
        steer(settings, lambda r: r.start(chunk_chars=1_000, overlap_chars=200))
    with pytest.raises(InvalidInput, match="overlap must be smaller"):
        steer(settings, lambda r: r.start(chunk_chars=100))
    with pytest.raises(InvalidInput, match=r"model_path: must be the model's directory"):
        steer(settings, lambda r: r.start(model_path=str(tmp_path / "nowhere")))
    with pytest.raises(ModelUnavailable, match=r"model\.onnx"):
        steer(settings, lambda r: r.start(model_path=str(tmp_path)))
    assert state(settings)[1] == []
    steer(settings, lambda r: r.start(model_path=tiny))
    with pytest.raises(Conflict, match="under way"):
        steer(settings, lambda r: r.start(chunk_chars=500, overlap_chars=100))


def test_the_new_model_is_loaded_beside_recall_before_recall_goes_over(
    settings: Settings, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(settings, *notes(3))
    work(settings)
    steer(settings, lambda r: r.start(model_path=tiny, switches=False))
    work(settings)
    asked, go_on = threading.Event(), threading.Event()
    load = embedding.load

    def slow(chosen: Settings, model: str | None = None) -> Embedder:
        if chosen.model_path == tiny:
            asked.set()
            assert go_on.wait(30)
        return load(chosen, model)

    monkeypatch.setattr(embedding, "load", slow)
    with Memory(settings=settings) as memory:

        def ask() -> str | None:
            found = memory.recall(
                user_id="ada", session_id="now", query="paint", current_tokens=0, context_window_capacity=8_000
            )
            assert found.items
            return found.degraded

        assert ask() is None
        assert asked.wait(30)
        assert ask() is None, "recall does not wait for a model that it does not need yet"
        go_on.set()
        monkeypatch.setattr(embedding, "load", None)  # from now on nobody can load anything
        steer(settings, lambda r: r.switch())
        assert ask() is None


def test_several_workers_build_it_while_messages_are_recorded_and_deleted(
    settings: Settings, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reindex, "STEP_MESSAGES", 8)
    few = replace(settings, claim_messages=16)
    ids = record(few, *notes(30)) + record(few, *notes(30), user="bob")
    work(few)
    steer(few, lambda r: r.start(model_path=tiny))

    def until_over() -> None:
        eventually(lambda: work(few) >= 0 and state(few)[0].index_no == 2, "recall goes over")

    workers = [threading.Thread(target=until_over) for _ in range(3)]
    for worker in workers:
        worker.start()
    with Memory(settings=few) as memory:
        for number in range(10):
            memory.record(user_id="ada", session_id="ada-1", role="user", content=f"Live {number} says hello.")
            memory.delete_message(user_id="ada", message_id=ids[3 * number])
    for worker in workers:
        worker.join()
    work(few)
    assert state(few)[0].index_no == 2
    assert vectors(few) == {(1, 384): 60, (2, 128): 60}
    assert chunks(few) == {1: 60, 2: 60}


def test_old_messages_are_walked_by_small_steps(settings: Settings, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reindex, "STEP_MESSAGES", 3)
    monkeypatch.setattr(reindex, "STEP_BYTES", 200)
    record(settings, *notes(7), "x" * 500, "", *notes(4))
    work(settings)
    steer(settings, lambda r: r.start(model_path=tiny))
    waiting: list[int] = []

    def look(index: SearchIndex, _texts: Sequence[str]) -> None:
        with psycopg.connect(settings.database_url) as conn:
            row = conn.execute("SELECT count(*) FROM index_tasks WHERE index_no = %s", (index.index_no,)).fetchone()
            assert row is not None
            waiting.append(row[0])

    work(settings, look)
    assert state(settings)[0].index_no == 2
    assert vectors(settings) == {(1, 384): 12, (2, 128): 12}
    assert max(waiting) <= 3
