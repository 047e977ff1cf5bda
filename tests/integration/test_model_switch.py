"""Another model is configured before the index was rebuilt for it: vectors of two models never meet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from calmem.memory import Memory
from calmem.models import Models
from calmem.queueing import WakeUps
from calmem.settings import Settings
from calmem.storage.pool import Database
from calmem_workers.index import Drainer
from tests.support.reindexing import best, record
from tests.support.tiny_model import write_tiny_model

KITTENS = "My daughter adores felines and has two kittens."
QUESTION = "Which pets does the girl like? cats?"  # shares no word with the answer: only a vector finds it


def index(settings: Settings) -> int:
    with Database(settings) as database:
        return Drainer(database, settings, Models(settings), WakeUps("")).drain()


def ask(settings: Settings) -> list[str]:
    """Found by meaning alone, and nothing skipped."""
    return best(settings, QUESTION, "dense")


def dimensions(settings: Settings) -> set[tuple[int, int]]:
    with psycopg.connect(settings.database_url) as conn:
        return set(conn.execute("SELECT DISTINCT index_no, vector_dims(embedding) FROM vectors"))


@pytest.mark.parametrize("dimension", [384, 128], ids=["same dimension", "another dimension"])
@pytest.mark.parametrize("name", ["", "test/tiny"], ids=["by path alone", "by name and path"])
def test_until_a_reindex_everything_goes_on_with_the_indexs_own_model(
    settings: Settings, tmp_path: Path, dimension: int, name: str
) -> None:
    record(settings, KITTENS, *(f"Note {n} about the garden gate and its paint." for n in range(40)))
    assert index(settings) == 41
    before = ask(settings)
    assert before == [KITTENS]

    other = write_tiny_model(tmp_path / "tiny", dimension, seed=7)
    switched = replace(settings, model_path=str(other), model=name or settings.model)
    assert ask(switched) == before
    record(switched, "He feeds the parrot and the hamster every evening.")
    assert index(switched) == 1
    assert dimensions(switched) == {(1, 384)}
    assert ask(switched) == before


def test_an_index_of_another_model_is_read_by_that_model_alone(settings: Settings, tmp_path: Path) -> None:
    """The other way round: the index was made by the other model, and the bundled one is configured."""
    other = write_tiny_model(tmp_path / "tiny", 128, seed=7)
    tiny = replace(settings, model_path=str(other))
    record(tiny, KITTENS)
    assert index(tiny) == 1
    assert dimensions(tiny) == {(1, 128)}

    with Memory(settings=settings) as memory:
        found = memory.recall(
            user_id="ada", session_id="now", query="kittens", current_tokens=0, context_window_capacity=1000
        )
    assert found.degraded is not None
    assert "CALMEM_MODEL_PATH" in found.degraded
    assert [set(item.scores) & {"cosine"} for item in found.items] == [set()]
