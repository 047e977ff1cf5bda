"""Indexing: the whole pipeline against the same texts embedded in memory, and against stock fastembed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import psycopg

from benchmarks import texts
from benchmarks.report import Row, asked_quick, publish, seconds
from benchmarks.running import Bench, batches, bench, peak_megabytes, pending, wait_until
from calmem import Memory, embedding
from calmem.embedding import bundled
from calmem.settings import Settings

MEBIBYTE = 1_048_576


def main() -> None:
    quick = asked_quick("Indexing throughput and memory.")
    with bench() as servers:
        publish("indexing", measure(servers, quick=quick), quick=quick)


def measure(servers: Bench, *, quick: bool) -> list[Row]:
    """Rounds of each kind take turns, and the best of each counts: what disturbs one is not the program."""
    rounds, count = (2, 160) if quick else (5, 1_000)
    settings = servers.fresh()
    embedder = embedding.load(settings)
    contents = texts.turns(count, seed=1)
    whole = chunks_of(contents, settings)
    embedder.embed(whole[:64])
    memory_seconds, one, two = [], [], []
    with psycopg.connect(settings.database_url, autocommit=True) as conn, Memory(settings=settings) as memory:
        with servers.process("worker", settings=settings) as first:
            warm_up(memory, conn, "first")
            for number in range(rounds):
                memory_seconds.append(seconds(lambda: embedder.embed(whole)))
                one.append(index_seconds(memory, conn, contents, f"one-{number}", settings))
            peak = peak_megabytes(first.pid)
            with servers.process("worker", settings=settings):
                warm_up(memory, conn, "second", seconds_more=4.0)
                for number in range(rounds):
                    two.append(index_seconds(memory, conn, contents, f"two-{number}", settings))
        size = MEBIBYTE // 16 if quick else MEBIBYTE
        with servers.process("worker", settings=settings) as worker:
            for place, chars in enumerate((size, size // 4, 200)):
                memory.record(
                    user_id="long", session_id="long", role="tool", content=texts.running_text(chars, seed=place)
                )
            wait_until(lambda: pending(conn) == 0, "long messages are indexed", process=worker)
            peak = max(peak, peak_megabytes(worker.pid))
    stock_seconds = seconds(lambda: list(stock(settings).embed(whole)))
    in_memory, pipeline = count / min(memory_seconds), count / min(one)
    return [
        Row(what="in memory, by length", value=in_memory, unit="msg/s", note=f"{len(whole)} chunks, {count} messages"),
        Row(what="pipeline, one worker", value=pipeline, unit="msg/s"),
        Row(what="stock fastembed", value=count / stock_seconds, unit="msg/s"),
        Row(what="pipeline / in memory", value=pipeline / in_memory, unit="x", target=0.85),
        Row(what="pipeline / stock", value=pipeline / (count / stock_seconds), unit="x", target=2.5),
        Row(what="two workers / one", value=min(one) / min(two), unit="x", note="embedding threads: 1 each"),
        Row(
            what="peak memory of the worker",
            value=peak,
            unit="MB",
            target=700,
            better="lower",
            note=f"longest message {size // 1024} KiB",
        ),
    ]


def chunks_of(contents: Sequence[str], settings: Settings) -> list[str]:
    """Cut nearly as the worker cuts them (which looks for white space), so that all sides embed about the same word pieces."""
    return [text[at : at + settings.chunk_chars] for text in contents for at in _starts(text, settings)]


def _starts(text: str, settings: Settings) -> range:
    return range(0, max(1, len(text) - settings.overlap_chars), settings.chunk_chars - settings.overlap_chars)


def index_seconds(
    memory: Memory, conn: psycopg.Connection[tuple[int]], contents: Sequence[str], label: str, settings: Settings
) -> float:
    """From the first recording in batches until the last one has its vectors; nothing else may be pending."""
    began = time.perf_counter()
    for batch in batches(messages(contents, label), settings.batch_messages):
        memory.record_many(batch)
    wait_until(lambda: pending(conn) == 0, "everything is indexed")
    return time.perf_counter() - began


def messages(contents: Sequence[str], label: str) -> list[dict[str, str]]:
    """Ten users, each in one session."""
    return [
        {
            "user_id": f"{label}-{place % 10}",
            "session_id": f"{label}-{place % 10}",
            "message_id": f"{label}-{place}",
            "role": "assistant" if place // 10 % 2 else "user",
            "content": content,
        }
        for place, content in enumerate(contents)
    ]


def warm_up(memory: Memory, conn: psycopg.Connection[tuple[int]], label: str, *, seconds_more: float = 0.0) -> None:
    """Until the worker has its model and has indexed something."""
    memory.record_many(messages(texts.turns(64, seed=2), f"warm-{label}"))
    wait_until(lambda: pending(conn) == 0, "the warm-up is indexed")
    time.sleep(seconds_more)


def stock(settings: Settings) -> Any:
    """fastembed as it comes, with the same model and threads."""
    from fastembed import TextEmbedding

    directory = bundled.prepare(settings.data_path / "models")
    return TextEmbedding(settings.model, specific_model_path=str(directory), threads=settings.embed_threads)


if __name__ == "__main__":
    main()
