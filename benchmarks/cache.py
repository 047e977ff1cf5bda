"""Recall with and without the vector cache as a user's history grows, and the scan alone against FAISS flat."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import httpx
import numpy as np
import psycopg
from numpy.typing import NDArray

from benchmarks import loading
from benchmarks.recall import ask
from benchmarks.report import Row, asked_quick, p50, percentile, publish
from benchmarks.running import Bench, bench, wait_until
from calmem import embedding
from calmem.held import BLOCK_ROWS, Held
from calmem.storage import vectors
from calmem.storage.vectors import Marks, Vectors
from calmem_services.local.ports import free_ports

SIZES = (1_000, 10_000, 50_000, 200_000)
TARGET_SIZE = 50_000
_MEGABYTES = 1_024


def main() -> None:
    quick = asked_quick("Recall with and without the vector cache.")
    with bench() as servers:
        publish("cache", measure(servers, quick=quick), quick=quick)


def measure(servers: Bench, *, quick: bool) -> list[Row]:
    """Both services and the bare embedding take turns. Vectors are random; see loading.py.

    Random vectors are the cache's worst case: scores lie close together, so more of them are compared exactly.
    """
    sizes = SIZES[:-1] if quick else SIZES
    rounds = 20 if quick else 100
    settings = servers.fresh()
    embedder = embedding.load(settings)
    names = {f"user-{size}": size for size in sizes}
    users = loading.load(settings.database_url, names, probe=embedding.probe(embedder), readable=list(names), seed=5)
    rows: list[Row] = []
    with ExitStack() as stack:
        plain = stack.enter_context(servers.service("retrieval", settings=settings))
        caching = replace(settings, cache_megabytes=_MEGABYTES, retrieval_port=free_ports(1)[0])
        cached = stack.enter_context(servers.service("retrieval", settings=caching))
        for name, size in names.items():
            asked = loading.questions(settings.database_url, users[name], rounds + 3, seed=size)
            warm(cached, name, asked[0])
            took: defaultdict[str, list[float]] = defaultdict(list)
            for number, query in enumerate(asked):
                turn: dict[str, float] = {}
                for way, http in (("Postgres", plain), ("cache", cached)):
                    began = time.perf_counter()
                    answer = ask(http, name, query)
                    turn[f"recall, {way}"] = _ms(began)
                    turn[f"dense stage, {way}"] = answer["timings_ms"]["dense"]
                began = time.perf_counter()
                embedder.embed_query(query)
                turn["embedding"] = _ms(began)
                if number >= 3:  # the first ones open connections and fill caches
                    for what, milliseconds in turn.items():
                        took[what].append(milliseconds)
            rows += _rows(size, took)
    with psycopg.connect(settings.database_url) as conn:
        for name, size in names.items():
            rows += _scan(size, read_vectors(conn, users[name]), rounds)
            conn.rollback()
    return rows


def warm(http: httpx.Client, user: str, query: str) -> None:
    """Recall until the cache answers."""

    def hits() -> str:
        lines = http.get("/metrics").text.splitlines()
        return next((line for line in lines if line.startswith('calmem_cache_searches_total{result="hit"}')), "")

    before = hits()

    def answered() -> bool:
        ask(http, user, query)
        return hits() != before

    wait_until(answered, "the cache answers")


def _rows(size: int, took: dict[str, list[float]]) -> list[Row]:
    label = f"{size:>7,} chunks: "
    rows = [
        Row(what=label + what, value=p50(times), unit="ms", note=f"p95 {percentile(times, 0.95):,.1f}")
        for what, times in took.items()
    ]
    middle = {what: p50(times) for what, times in took.items()}
    rows.append(
        Row(
            what=label + "recall, cache / embedding",
            value=middle["recall, cache"] / middle["embedding"],
            unit="x",
            target=2.0 if size == TARGET_SIZE else None,
            better="lower",
        )
    )
    rows.append(
        Row(
            what=label + "recall, Postgres / cache",
            value=middle["recall, Postgres"] / middle["recall, cache"],
            unit="x",
        )
    )
    return rows


def read_vectors(conn: psycopg.Connection[tuple[object, ...]], user_no: int) -> Vectors:
    read = vectors.read_all(conn, user_no=user_no, index_no=1, dimension=loading.DIMENSION, slice_rows=BLOCK_ROWS)
    assert read is not None
    parts = list(read[2])
    return Vectors(
        chunk_nos=np.concatenate([part.chunk_nos for part in parts]),
        written=np.ones(sum(len(part.written) for part in parts), np.int64),
        halves=np.concatenate([part.halves for part in parts]),
    )


def _scan(size: int, stored: Vectors, rounds: int) -> list[Row]:
    """The same vectors and queries, 200 nearest, in turns; FAISS on one thread, as it takes for one query."""
    import faiss

    limit = 200
    held = Held(removed="", filled=0, written=0, blocks=(), used=0).extended(Marks(written=1, removed=""), stored)
    flat = faiss.IndexFlatIP(loading.DIMENSION)
    flat.add(stored.halves.astype(np.float32))
    faiss.omp_set_num_threads(1)
    rng = np.random.default_rng(size)
    ours: list[float] = []
    theirs: list[float] = []
    exact = {"cache": 0, "FAISS": 0}
    for number in range(rounds + 3):
        query = rng.standard_normal(loading.DIMENSION).astype(np.float32)
        query /= np.linalg.norm(query)
        began = time.perf_counter()
        hits = held.search(query, limit, hidden=(), mark=1)
        mine = _ms(began)
        began = time.perf_counter()
        _, places = flat.search(query[None], limit)
        other = _ms(began)
        if number < 3:
            continue
        ours.append(mine)
        theirs.append(other)
        best = _exact_top(stored, query, 5)
        exact["cache"] += len(best & {hit.chunk_no for hit in hits[:5]})
        exact["FAISS"] += len(best & set(stored.chunk_nos[places[0, :5]].tolist()))
    label = f"{size:>7,} chunks: scan, "
    rows = [
        Row(
            what=label + name,
            value=p50(times),
            unit="ms",
            note=f"p95 {percentile(times, 0.95):,.1f}, exact top 5: {exact[name] / (5 * rounds):.0%}",
        )
        for name, times in (("cache", ours), ("FAISS", theirs))
    ]
    rows.append(
        Row(
            what=label + "cache / FAISS",
            value=p50(ours) / p50(theirs),
            unit="x",
            target=1.5 if size == TARGET_SIZE else None,
            better="lower",
        )
    )
    rows.append(Row(what=label + "memory", value=held.nbytes / size, unit="B/chunk", target=1_500, better="lower"))
    return rows


def _exact_top(stored: Vectors, query: NDArray[np.float32], count: int) -> set[int]:
    """The nearest by products in float64."""
    scores: Sequence[NDArray[np.float64]] = [
        stored.halves[first : first + BLOCK_ROWS].astype(np.float64) @ query.astype(np.float64)
        for first in range(0, len(stored.halves), BLOCK_ROWS)
    ]
    return set(stored.chunk_nos[np.argsort(-np.concatenate(scores))[:count]].tolist())


def _ms(began: float) -> float:
    return (time.perf_counter() - began) * 1_000


if __name__ == "__main__":
    main()
