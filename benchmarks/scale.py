"""Growth: recall, indexing and storage as a fleet of users grows tenfold, up to a million chunks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import psycopg
from numpy.typing import NDArray

from benchmarks import loading, steady
from benchmarks.report import Row, options, p50, percentile, publish
from benchmarks.running import Bench, bench
from calmem import Memory, embedding
from calmem.settings import Settings

CHUNKS, CHUNKS_QUICK, FEWEST = 1_000_000, 50_000, 50_000
GROWTH = 10
# Chunks of a user: log-normal. Most have little, a few have much: of a million, one user has 34,000.
MEDIAN, SIGMA = 150.0, 1.5
# Where in the small table, ordered by size, the users that are asked stand.
CLASSES = {"small": 0.25, "middle": 0.5, "large": 1.0}


def main() -> None:
    parser = options("Recall, indexing and storage as the table grows tenfold.")
    parser.add_argument("--chunks", type=int, help=f"of all users in the big table; default {CHUNKS:,}")
    asked = parser.parse_args()
    if asked.chunks is not None and asked.chunks < FEWEST:
        parser.error(f"--chunks must be {FEWEST:,} or more: the small table has a tenth of them")
    with bench() as servers:
        publish("scale", measure(servers, quick=asked.quick, chunks=asked.chunks), quick=asked.quick)


def measure(servers: Bench, *, quick: bool, chunks: int | None = None) -> list[Row]:
    """A small table, and a big one: the same users with the same histories, and nine times as much of others."""
    chunks = chunks or (CHUNKS_QUICK if quick else CHUNKS)
    fleet = fleet_of(chunks, seed=11)
    few = _first(fleet, chunks // GROWTH)
    classes = _classes(few, each=2 if quick else 8)
    asked = [name for names in classes.values() for name in names]
    small, big = servers.fresh(), servers.fresh()
    probe = embedding.probe(embedding.load(small))
    user_nos = _load(small, few, probe, asked)
    _load(big, fleet, probe, asked)
    biggest = f"{sum(fleet.values()):,} chunks, of one user at most {max(fleet.values()):,}"
    return [
        Row(what="users", value=len(fleet), unit="", note=biggest),
        *_recalls(small, big, classes, few, user_nos, rounds=40 if quick else 300),
        *_storage(big, sum(fleet.values())),
        *steady.measure(servers, small, big, quick=quick),
    ]


def _load(
    settings: Settings, sizes: Mapping[str, int], probe: NDArray[np.float32], asked: Sequence[str]
) -> dict[str, int]:
    found = loading.load(settings.database_url, sizes, probe=probe, readable=asked, seed=12, all_texts=True)
    with psycopg.connect(settings.database_url, autocommit=True) as conn:
        conn.execute("CHECKPOINT")  # not while recalls are measured
    return found


def fleet_of(chunks: int, *, seed: int) -> dict[str, int]:
    """Log-normal histories, by user, that many chunks in all; none has more than half of a tenth."""
    rng = np.random.default_rng(seed)
    sizes: list[int] = []
    while sum(sizes) < chunks:
        sizes.append(int(np.clip(rng.lognormal(np.log(MEDIAN), SIGMA), 10, chunks / GROWTH / 2)))
    sizes[-1] -= sum(sizes) - chunks
    return {f"user-{number}": size for number, size in enumerate(sizes, 1) if size}


def _first(fleet: Mapping[str, int], chunks: int) -> dict[str, int]:
    """The first users, with about that many chunks in all."""
    few: dict[str, int] = {}
    for name, size in fleet.items():
        if few and sum(few.values()) + size / 2 > chunks:
            break
        few[name] = size
    return few


def _classes(sizes: Mapping[str, int], *, each: int) -> dict[str, list[str]]:
    """So many neighbouring users of each size."""
    ordered = sorted(sizes, key=sizes.__getitem__)
    last = len(ordered) - each
    firsts = {name: max(0, min(last, round(share * len(ordered)) - each // 2)) for name, share in CLASSES.items()}
    return {name: ordered[first : first + each] for name, first in firsts.items()}


def _recalls(
    few: Settings,
    many: Settings,
    classes: Mapping[str, Sequence[str]],
    sizes: Mapping[str, int],
    user_nos: Mapping[str, int],
    *,
    rounds: int,
) -> list[Row]:
    """The same questions of the same users to both tables in turns; `rounds` of each class and table."""
    took: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    questions = {
        name: loading.questions(few.database_url, user_nos[name], rounds, seed=13)
        for names in classes.values()
        for name in names
    }
    with Memory(settings=few) as small, Memory(settings=many) as big:
        places = [("small", small), ("big", big)]
        for number in range(-3, rounds):
            for size, names in classes.items():
                name = names[number % len(names)]
                query = questions[name][number // len(names) % len(questions[name])]
                for table, memory in places if number % 2 else places[::-1]:
                    answer = memory.recall(
                        user_id=name,
                        session_id=f"{name}-now",
                        query=query,
                        current_tokens=1_000,
                        context_window_capacity=100_000,
                    )
                    if number >= 0:  # the first ones open connections and load the model
                        if answer.degraded is not None:
                            raise RuntimeError(f"not a full recall: {answer.degraded}")
                        took[size, table].append(answer.timings_ms["total"])
    rows = []
    for size, names in classes.items():
        before, after = took[size, "small"], took[size, "big"]
        least, most = min(sizes[name] for name in names), max(sizes[name] for name in names)
        what = f"recall, {size} history ({least:,} to {most:,} chunks)"
        tails = percentile(after, 0.95), percentile(before, 0.95)
        note = f"{tails[0]:.1f} ms / {tails[1]:.1f} ms, {rounds} recalls each"
        rows += [
            Row(
                what=f"{what}: p95, tenfold table / table",
                value=tails[0] / tails[1],
                unit="x",
                target=1.3,
                better="lower",
                note=note,
            ),
            Row(
                what=f"{what}: p50, tenfold table / table",
                value=p50(after) / p50(before),
                unit="x",
                note=f"{p50(after):.1f} ms / {p50(before):.1f} ms",
            ),
        ]
    return rows


_SIZES = """
SELECT coalesce(i.indrelid::regclass::text || ', index ' || c.relname, c.relname),
       CASE WHEN i.indrelid IS NULL THEN pg_table_size(c.oid) ELSE pg_relation_size(c.oid) END
FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'i')
ORDER BY 1
"""


def _storage(settings: Settings, chunks: int) -> list[Row]:
    """Bytes per chunk; a message here is one chunk."""
    with psycopg.connect(settings.database_url) as conn:
        sizes = {str(what): int(size) / chunks for what, size in conn.execute(_SIZES).fetchall()}
    rows = [Row(what=f"storage: {what}", value=size, unit="B/chunk") for what, size in sizes.items() if size >= 1]
    return [*rows, Row(what="storage: all", value=sum(sizes.values()), unit="B/chunk")]


if __name__ == "__main__":
    main()
