"""Neighbours: what a user's search costs in a full table, against the same user alone."""

from __future__ import annotations

import time
from collections import defaultdict

import psycopg

from benchmarks import loading
from benchmarks.report import Row, asked_quick, p50, publish
from benchmarks.running import Bench, bench
from calmem import Memory, embedding
from calmem.storage import search
from calmem.storage.pool import bound_reads

MINE = 4_000
ALL, ALL_QUICK = 400_000, 100_000


def main() -> None:
    quick = asked_quick("One user's recall in a table of many users.")
    with bench() as servers:
        publish("tenants", measure(servers, quick=quick), quick=quick)


def measure(servers: Bench, *, quick: bool) -> list[Row]:
    """The full table and the one with this user only take turns. Vectors and the neighbours' words are random."""
    rounds = 30 if quick else 300
    everyone = ALL_QUICK if quick else ALL
    full, alone = servers.fresh(), servers.fresh()
    embedder = embedding.load(full)
    probe = embedding.probe(embedder)
    # In the middle of the others by number, and mixed with them in the table.
    names = [f"neighbour-{number}" for number in range(1, everyone // MINE)]
    names.insert(len(names) // 2, "me")
    sizes = dict.fromkeys(names, MINE)
    user_no = {
        "full": loading.load(full.database_url, sizes, probe=probe, readable=["me"], seed=4)["me"],
        "alone": loading.load(alone.database_url, {"me": MINE}, probe=probe, readable=["me"], seed=4)["me"],
    }
    took: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    with (
        Memory(settings=full) as full_memory,
        Memory(settings=alone) as alone_memory,
        psycopg.connect(full.database_url, prepare_threshold=None) as full_conn,
        psycopg.connect(alone.database_url, prepare_threshold=None) as alone_conn,
    ):
        places = [("full", full_memory, full_conn), ("alone", alone_memory, alone_conn)]
        asked = {
            "full": loading.questions(full.database_url, user_no["full"], rounds + 3, seed=5),
            "alone": loading.questions(alone.database_url, user_no["alone"], rounds + 3, seed=5),
        }
        for number in range(rounds + 3):
            for label, memory, conn in places if number % 2 else places[::-1]:
                query = asked[label][number]
                vector = embedder.embed_query(query)
                bound_reads(conn, 60_000)
                began = time.perf_counter()
                search.dense(conn, search.Scope(user_no=user_no[label], index_no=1), vector, full.candidates)
                scanned = (time.perf_counter() - began) * 1_000
                conn.rollback()
                answer = memory.recall(
                    user_id="me",
                    session_id="me-now",
                    query=query,
                    current_tokens=1_000,
                    context_window_capacity=100_000,
                )
                if number < 3:
                    continue  # the first ones open connections and load the model
                took["scan", label].append(scanned)
                for stage in ("words", "load", "total"):
                    took[stage, label].append(answer.timings_ms[stage])
    return _rows(took, everyone)


def _rows(took: dict[tuple[str, str], list[float]], everyone: int) -> list[Row]:
    rows = []
    for stage, target in (("scan", 1.3), ("words", None), ("load", None), ("total", 1.3)):
        full, alone = p50(took[stage, "full"]), p50(took[stage, "alone"])
        what = {"scan": "vectors, bare scan", "total": "whole recall"}.get(stage, stage)
        note = f"p50 {full:.2f} ms / {alone:.2f} ms; {MINE:,} of {everyone:,} chunks"
        rows.append(
            Row(what=f"{what}: full / alone", value=full / alone, unit="x", target=target, better="lower", note=note)
        )
    return rows


if __name__ == "__main__":
    main()
