"""Recall over HTTP as a user's history grows, against its floor: embed the query, scan the vectors in SQL."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import httpx
import psycopg

from benchmarks import loading
from benchmarks.report import Row, asked_quick, p50, percentile, publish
from benchmarks.running import Bench, bench
from calmem import embedding
from calmem.storage import search
from calmem.storage.pool import bound_reads

SIZES = (1_000, 10_000, 50_000)
DEADLINE_MS = 300


def main() -> None:
    quick = asked_quick("Recall over HTTP for users of growing size.")
    with bench() as servers:
        publish("recall", measure(servers, quick=quick), quick=quick)


def measure(servers: Bench, *, quick: bool) -> list[Row]:
    """Recalls and the floor take turns. Vectors are random; words and texts have Zipf frequencies (loading.py)."""
    rounds = 20 if quick else 200
    settings = servers.fresh()
    embedder = embedding.load(settings)
    users = loading.load(
        settings.database_url,
        {_user(size): size for size in SIZES},
        probe=embedding.probe(embedder),
        readable=[_user(size) for size in SIZES],
        seed=3,
    )
    rows = []
    with (
        servers.service("retrieval", settings=settings) as http,
        psycopg.connect(settings.database_url, prepare_threshold=None) as conn,
    ):
        for size in SIZES:
            scope = search.Scope(user_no=users[_user(size)], index_no=1)
            took: defaultdict[str, list[float]] = defaultdict(list)
            for number, query in enumerate(
                loading.questions(settings.database_url, scope.user_no, rounds + 3, seed=size)
            ):
                began = time.perf_counter()
                answer = ask(http, _user(size), query)
                elapsed = _ms(began)
                began = time.perf_counter()
                vector = embedder.embed_query(query)
                embedded = _ms(began)
                bound_reads(conn, 60_000)
                began = time.perf_counter()
                search.dense(conn, scope, vector, settings.candidates)
                scanned = _ms(began)
                conn.rollback()
                if number < 3:
                    continue  # the first ones open connections and fill caches
                for stage, milliseconds in answer["timings_ms"].items():
                    took[stage].append(milliseconds)
                took["HTTP"].append(elapsed)
                took["bare embed"].append(embedded)
                took["bare scan"].append(scanned)
                took["floor"].append(embedded + scanned)
            rows += _rows(size, took)
    return rows


def _rows(size: int, took: dict[str, list[float]]) -> list[Row]:
    late = sum(milliseconds > DEADLINE_MS for milliseconds in took["total"])
    rows = [
        Row(
            what=f"{size:>6,} chunks: {stage}",
            value=p50(times),
            unit="ms",
            note=f"p95 {percentile(times, 0.95):,.1f}" + (f", {late} past 300 ms" if stage == "total" and late else ""),
        )
        for stage, times in took.items()
    ]
    target = 1.5 if size == SIZES[-1] else None
    ratio = p50(took["HTTP"]) / p50(took["floor"])
    note = "HTTP p50 / (embed + bare scan in SQL)"
    rows.append(
        Row(what=f"{size:>6,} chunks: / floor", value=ratio, unit="x", target=target, better="lower", note=note)
    )
    return rows


def ask(http: httpx.Client, user_id: str, query: str) -> dict[str, Any]:
    request = {
        "user_id": user_id,
        "session_id": f"{user_id}-now",
        "query": query,
        "current_tokens": 1_000,
        "context_window_capacity": 100_000,
    }
    response = http.post("/v1/recall", json=request)
    response.raise_for_status()
    answer: dict[str, Any] = response.json()
    if answer["degraded"] or not answer["items"]:
        raise RuntimeError(f"not a full recall: {answer['degraded']}, {len(answer['items'])} items")
    return answer


def _user(size: int) -> str:
    return f"user-{size}"


def _ms(began: float) -> float:
    return (time.perf_counter() - began) * 1_000


if __name__ == "__main__":
    main()
