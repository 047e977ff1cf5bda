"""`calmem eval`: a scratch database, real workers, every query, each system beside the others."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any
from zoneinfo import ZoneInfo

from calmem import budget, packing
from calmem.errors import TransientError
from calmem.memory import Memory
from calmem.model import Item, Lane
from calmem.recall import MAX_K, Recaller
from calmem.searching import ARMS
from calmem.settings import Settings
from calmem.storage import backlog
from calmem.storage.migrate import migrate, scratch_database
from calmem.storage.pool import Database
from calmem_services.evaluation.data import Labelled, Query
from calmem_services.evaluation.metrics import evidence_recall, mean, ranked_scores
from calmem_services.evaluation.vectors import RememberingModels
from calmem_services.local.stack import environment, servers

# Full system, and each arm of the search alone.
SYSTEMS: dict[str, tuple[str, ...]] = {"full": ARMS, "dense": ("dense",), "words": ("words",)}
# What a sweep shows at each value: what is found, and what strangers get.
SWEPT = ("recall@5", "budget@750", "strangers")
_BATCH = 500
_Scores = dict[str, float | None]


def evaluate(
    settings: Settings,
    labelled: Labelled,
    *,
    budgets: Sequence[int],
    workers: int,
    sweeps: Mapping[str, Sequence[float]],
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """The report in the JSON shape of the specification's section 18, with every query's values.

    `sweeps`: values to try by the name of a setting that recall reads. Raises InvalidInput for a bad history.
    """
    rows, queries = labelled.history, labelled.queries
    with _scratch(settings) as own, Memory(settings=own) as memory:
        began = time.monotonic()
        for first in range(0, len(rows), _BATCH):
            memory.record_many(rows[first : first + _BATCH], lane=Lane.BACKFILL)
        recorded = time.monotonic()
        progress(f"recorded {len(rows)} messages; indexing with {workers} worker processes")
        _index(own, workers)
        indexed = time.monotonic()
        progress(f"indexed in {indexed - recorded:.0f} s; asking {len(queries)} queries")
        models = RememberingModels(own)
        scores = {}
        for name, arms in SYSTEMS.items():
            scores[name] = _ask_all(own, models, labelled, arms, budgets)
            progress(f"{name} done")
        asked = time.monotonic()
        swept = {
            setting: [_swept(own, models, labelled, setting, value, progress) for value in values]
            for setting, values in sweeps.items()
        }
        seconds = {
            "record": round(recorded - began, 2),
            "index": round(indexed - recorded, 2),
            "ask": round(asked - indexed, 2),
        }
        if swept:
            seconds["sweep"] = round(time.monotonic() - asked, 2)
    report = {
        "systems": {name: _summary(queries, of_system) for name, of_system in scores.items()},
        "queries": len(queries),
        "messages": len(rows),
        "seconds": seconds,
        "data": labelled.fingerprint,
        "queries_detail": [
            {
                "query_id": query.query_id,
                "category": query.category,
                "systems": {name: of_system[place] for name, of_system in scores.items()},
            }
            for place, query in enumerate(queries)
        ],
    }
    return report | ({"sweeps": swept} if swept else {})


@contextmanager
def _scratch(settings: Settings) -> Iterator[Settings]:
    """Settings with a database of its own, dropped at the end; Redis is not needed, workers run in bursts."""
    with servers(settings) as running:
        name = f"calmem_eval_{secrets.token_hex(4)}"
        with scratch_database(running.database_url, name) as url:
            migrate(url, model=running.model, chunk_chars=running.chunk_chars, overlap_chars=running.overlap_chars)
            yield replace(running, database_url=url, redis_url="", recall_deadline_ms=60_000, log_level="warning")


def _index(settings: Settings, workers: int) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "calmem_services.cli.main", "worker", "--burst"],
            env=environment(settings),
            stdout=subprocess.DEVNULL,
        )
        for _ in range(workers)
    ]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise TransientError("a worker process failed; its log above says why")
    with Database(settings) as database, database.connection() as conn:
        state = backlog.queue_state(conn)
    if state.pending or state.failed:
        raise TransientError(f"{state.pending + state.failed} messages could not be indexed; the log above says why")


def _ask_all(
    settings: Settings,
    models: RememberingModels,
    labelled: Labelled,
    arms: Collection[str],
    budgets: Sequence[int],
) -> list[_Scores]:
    """Every query's measures under these settings, in the order of the queries."""
    full = budget.tier(0, 1, settings)

    def ask(query: Query) -> _Scores:
        # `recall` is this search, then this packing: the search need not be done again for every budget.
        items = found(query.user_id, query)
        scores: _Scores = {**ranked_scores([item.message_id for item in items], query.relevant)}
        for tokens in budgets:
            limits = replace(full, episodes=min(full.episodes, tokens), block=min(full.block, tokens))
            packed = packing.fit(
                items, k=None, facts=[], zone=ZoneInfo("UTC"), limits=limits, style="list", new_user=False
            )
            wanted = [labelled.contents[one] for one in query.relevant]
            scores[f"budget@{tokens}"] = evidence_recall(packed.block.text, wanted)
        stranger = labelled.stranger_to(query.user_id)
        scores["strangers"] = None if stranger is None else float(bool(found(stranger, query)))
        return scores

    with (
        Database(settings) as database,
        closing(Recaller(database, settings, models)) as recaller,
        ThreadPoolExecutor(2) as threads,
    ):

        def found(user_id: str, query: Query) -> list[Item]:
            return recaller.search(user_id=user_id, query=query.query, k=MAX_K, arms=arms, now=query.asked_at)

        return list(threads.map(ask, labelled.queries))


def _swept(
    settings: Settings,
    models: RememberingModels,
    labelled: Labelled,
    setting: str,
    value: float,
    progress: Callable[[str], None],
) -> dict[str, float | None]:
    changed = replace(settings, **{setting: value})  # type: ignore[arg-type]  # the command checked the setting's type
    means = mean(_ask_all(changed, models, labelled, ARMS, [750]))
    progress(f"{setting} {value:g} done")
    return {"value": value, **{name: means[name] for name in SWEPT}}


def _summary(queries: Sequence[Query], rows: Sequence[_Scores]) -> dict[str, Any]:
    categories = sorted({query.category for query in queries})
    return {
        "overall": mean(rows),
        "by_category": {
            name: mean([row for row, query in zip(rows, queries, strict=True) if query.category == name])
            for name in categories
        },
    }
