"""What runs at the same time in recall: two parts that have to meet only get there when neither waits for the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from calmem import Memory
from calmem.embedding.fastembed_adapter import FastembedEmbedder
from calmem.model import Recall
from calmem.models import Models
from calmem.queueing import WakeUps
from calmem.settings import Settings
from calmem.storage import opening, search
from calmem.storage.pool import Database
from calmem_workers.index import Drainer

LINES = ("The tomatoes need more sun.", "I pruned the roses in March.", "Slugs ate half of the lettuce.")
QUESTION = "What happened to the lettuce in the garden?"


@pytest.fixture
def told(settings: Settings) -> Iterator[Memory]:
    """A host with an indexed memory that has recalled once, so that the model is loaded."""
    with Memory(settings=settings) as memory, Database(settings) as database:
        memory.record_many([{"user_id": "ada", "session_id": "old", "role": "user", "content": line} for line in LINES])
        assert Drainer(database, settings, Models(settings), WakeUps("")).drain() == len(LINES)
        ask(memory)
        yield memory


def ask(memory: Memory) -> Recall:
    found = memory.recall(
        user_id="ada", session_id="now", query=QUESTION, current_tokens=0, context_window_capacity=1000
    )
    assert found.degraded is None
    assert found.items[0].text == LINES[2]
    return found


def meeting(barrier: Barrier, call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, once the other part has come as far; raises when it does not come."""

    def wait_and_call(*args: Any, **fields: Any) -> Any:
        barrier.wait()
        return call(*args, **fields)

    return wait_and_call


def test_words_are_searched_while_the_query_is_embedded(told: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    barrier = Barrier(2, timeout=20)
    monkeypatch.setattr(FastembedEmbedder, "embed_query", meeting(barrier, FastembedEmbedder.embed_query))
    monkeypatch.setattr(search, "words", meeting(barrier, search.words))
    assert ask(told).items[0].reasons == ("words", "meaning")


def test_the_memory_is_opened_while_the_query_is_embedded(told: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    barrier = Barrier(2, timeout=20)
    monkeypatch.setattr(FastembedEmbedder, "embed_query", meeting(barrier, FastembedEmbedder.embed_query))
    monkeypatch.setattr(opening, "read_asker", meeting(barrier, opening.read_asker))
    ask(told)


def test_queries_do_not_wait_for_one_another_in_the_model(told: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    barrier = Barrier(4, timeout=20)
    monkeypatch.setattr(FastembedEmbedder, "embed_query", meeting(barrier, FastembedEmbedder.embed_query))
    with ThreadPoolExecutor(4) as hosts:
        blocks = {found.block for found in hosts.map(lambda _: ask(told), range(4))}
    assert len(blocks) == 1


def test_a_query_is_embedded_once(told: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the phrase for a time is cut out of it, which takes the user's zone to read."""
    embedded: list[str] = []
    real = FastembedEmbedder.embed_query

    def count(self: FastembedEmbedder, text: str) -> Any:
        embedded.append(text)
        return real(self, text)

    monkeypatch.setattr(FastembedEmbedder, "embed_query", count)
    told.put_user("ada", time_zone="Pacific/Auckland")
    told.search(user_id="ada", query="What did I say about lettuce yesterday?")
    assert embedded == ["What did I say about lettuce  ?"]
