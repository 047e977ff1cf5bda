"""`calmem eval`: a scratch database, real workers, every query, each system beside the others."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from calmem import budget, ranking, text
from calmem.errors import InvalidInput, TransientError
from calmem.memory import Memory
from calmem.model import Lane
from calmem.recall import MAX_K
from calmem.settings import Settings
from calmem.storage import tasks
from calmem.storage.migrate import migrate, scratch_database
from calmem.storage.pool import Database
from calmem_services.evaluation.data import Query, read_lines, read_queries
from calmem_services.evaluation.metrics import evidence_recall, mean, ranked_scores
from calmem_services.local.stack import environment, servers

# Full system, and each arm of the search alone.
SYSTEMS: dict[str, tuple[str, ...]] = {"full": ("dense", "words"), "dense": ("dense",), "words": ("words",)}
_BATCH = 500


def evaluate(
    settings: Settings,
    *,
    history: Path,
    queries: Path,
    budgets: Sequence[int],
    workers: int,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """The report in the JSON shape of the specification's section 18. Raises InvalidInput for bad files."""
    rows = read_lines(history)
    contents = {str(row.get("message_id")): _as_shown(row.get("content"), settings) for row in rows}
    asked = read_queries(queries, contents)
    if not asked:
        raise InvalidInput(queries.name, "holds no query")
    with _scratch(settings) as own, Memory(settings=own) as memory:
        began = time.monotonic()
        for first in range(0, len(rows), _BATCH):
            memory.record_many(rows[first : first + _BATCH], lane=Lane.BACKFILL)
        recorded = time.monotonic()
        progress(f"recorded {len(rows)} messages; indexing with {workers} worker processes")
        _index(own, workers)
        indexed = time.monotonic()
        progress(f"indexed in {indexed - recorded:.0f} s; asking {len(asked)} queries")
        systems = {}
        for name, arms in SYSTEMS.items():
            systems[name] = _system(memory, own, asked, contents, arms, budgets)
            progress(f"{name} done")
        seconds = {
            "record": round(recorded - began, 2),
            "index": round(indexed - recorded, 2),
            "ask": round(time.monotonic() - indexed, 2),
        }
    return {"systems": systems, "queries": len(asked), "messages": len(rows), "seconds": seconds}


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
        state = tasks.queue_state(conn)
    if state.pending or state.failed:
        raise TransientError(f"{state.pending + state.failed} messages could not be indexed; the log above says why")


def _as_shown(content: object, settings: Settings) -> str:
    """A message's text as a block writes it, which is what evidence is looked for by."""
    return text.escape(text.clean(content, limit_bytes=settings.message_bytes))


def _system(
    memory: Memory,
    settings: Settings,
    queries: Sequence[Query],
    contents: dict[str, str],
    arms: tuple[str, ...],
    budgets: Sequence[int],
) -> dict[str, Any]:
    full = budget.tier(0, 1, settings)

    def ask(query: Query) -> dict[str, float]:
        # `recall` is this search, then this packing: the search need not be done again for every budget.
        items = memory.search(user_id=query.user_id, query=query.query, k=MAX_K, arms=arms, now=query.asked_at)
        scores = ranked_scores([item.message_id for item in items], query.relevant)
        for tokens in budgets:
            limits = replace(full, episodes=min(full.episodes, tokens), block=min(full.block, tokens))
            rendered, _ = ranking.fit(
                items, k=None, facts=[], zone=ZoneInfo("UTC"), limits=limits, style="list", new_user=False
            )
            scores[f"budget@{tokens}"] = evidence_recall(rendered.text, [contents[one] for one in query.relevant])
        return scores

    with ThreadPoolExecutor(2) as threads:
        rows = list(threads.map(ask, queries))
    categories = sorted({query.category for query in queries})
    return {
        "overall": mean(rows),
        "by_category": {
            name: mean([row for row, query in zip(rows, queries, strict=True) if query.category == name])
            for name in categories
        },
    }
