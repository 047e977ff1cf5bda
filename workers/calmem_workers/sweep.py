"""The sweeper: wakes workers for what is pending, sets aside what died, reports the oldest pending age."""

from __future__ import annotations

import signal
import threading
from types import FrameType

import structlog

from calmem import metrics
from calmem.errors import TransientError
from calmem.model import Lane, QueueState
from calmem.queueing import WakeUps
from calmem.settings import Settings
from calmem.storage import backlog, reindexes, tasks
from calmem.storage.pool import Database

log = structlog.get_logger(__name__)


def run_sweeper(settings: Settings, *, once: bool = False) -> None:
    """Sweep every `sweep_seconds` until SIGTERM or SIGINT. Outages of Postgres or Redis are waited out."""
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    wake_ups = WakeUps(settings.redis_url)
    with Database(settings) as database, metrics.exposed(settings):
        while not stop.is_set():
            try:
                sweep(database, wake_ups, settings)
            except TransientError as exc:
                log.warning("sweep_skipped", error=str(exc))
            if once:
                return
            stop.wait(settings.sweep_seconds)


def sweep(database: Database, wake_ups: WakeUps, settings: Settings) -> QueueState:
    """One round. Expired leases need no hand: a claim takes them as they are."""
    with database.connection() as conn:
        dead = tasks.set_aside_dead(conn, max_attempts=settings.max_attempts)
        state = backlog.queue_state(conn)
        beside = reindexes.work_left(conn)
    for lane, wanted in {**state.pending_by_lane, Lane.REINDEX: beside}.items():
        if wanted:
            wake_ups.push(lane)
    if dead:
        log.warning("messages_set_aside", count=dead)
    late = state.live_seconds > settings.degraded_after_seconds
    report = log.warning if late else log.debug
    report(
        "swept",
        pending=state.pending,
        failed=state.failed,
        oldest_pending_seconds=round(state.oldest_seconds, 1),
        oldest_live_seconds=round(state.live_seconds, 1),
    )
    return state
