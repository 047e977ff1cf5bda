"""Every metric of calmem, name and meaning together (Prometheus)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Counter, Gauge, Histogram, start_http_server

from calmem.errors import PermanentError
from calmem.model import RECALL_LANES, IndexState, Lane, QueueState, Recall, Reindex
from calmem.settings import Settings

HTTP = Counter(
    "calmem_http_requests_total",
    "Requests answered, health and metrics left out, by status (none: no answer)",
    ["status"],
)
OVERLOADED = Counter(
    "calmem_requests_overloaded_total",
    "Requests answered 503 without any work: too many were waiting (full), or it had waited too long (late)",
    ["reason"],
)
REQUESTS_AT_WORK = Gauge("calmem_requests_at_work", "Requests that this process works on")
REQUESTS_WAITING = Gauge("calmem_requests_waiting", "Requests that wait for their turn in this process")
POOL_CONNECTIONS = Gauge(
    "calmem_pool_connections",
    "Database connections of this process: (open), of these (free); callers (waiting) for one",
    ["state"],
)
POOL_TIMEOUTS = Counter(
    "calmem_pool_timeouts_total",
    "Times that no database connection was to be had in time: all were (busy), the server was (away), or the caller had a "
    "(deadline) of its own, shorter than CALMEM_POOL_WAIT_SECONDS",
    ["reason"],
)
DATABASE_UP = Gauge("calmem_database_up", "Whether the database answered when this was read (1 or 0)")

RECORDED = Counter("calmem_messages_recorded_total", "Messages stored by this process", ["lane"])
WAKEUPS_LOST = Counter("calmem_wakeups_lost_total", "Wake-ups that Redis did not take; the sweeper makes up for them")
INDEXED = Counter("calmem_messages_indexed_total", "Messages whose vectors this process wrote")
INDEX_FAILURES = Counter("calmem_index_failures_total", "Attempts to index a message that ended in an error")
RECALL_SECONDS = Histogram(
    "calmem_recall_seconds",
    "Time of a recall by stage",
    ["stage"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.5),
)
RECALL_TIERS = Counter("calmem_recall_tier_total", "Recalls by tier", ["tier"])
RECALL_DEGRADED = Counter("calmem_recall_degraded_total", "Recalls that skipped something")
PENDING = Gauge("calmem_pending_messages", "Messages waiting for their vectors", ["lane"])
OLDEST_PENDING = Gauge(
    "calmem_oldest_pending_seconds",
    "Age of the oldest message that waits for its vectors, by lane: live, backfill (imports)",
    ["lane"],
)
LEASED = Gauge("calmem_leased_messages", "Pending messages that a worker is at")
FAILED = Gauge("calmem_failed_messages", "Messages set aside after their last attempt")
CHUNKS = Gauge("calmem_chunks", "Chunks in the index (the planner's estimate)")
REINDEX_MESSAGES = Gauge(
    "calmem_reindex_messages", "Messages that the index being built has to take in; 0: none is built"
)
REINDEX_DONE = Gauge("calmem_reindex_done_messages", "Of these, those that it has taken in or set aside")
REINDEX_FAILED = Gauge("calmem_reindex_failed_messages", "Messages set aside in the index beside the active one")
REINDEX_SECONDS_LEFT = Gauge(
    "calmem_reindex_seconds_left", "Time until it is complete at the present rate; NaN: unknown"
)
REINDEX_STATE = Gauge("calmem_reindex_state", "1 for the state of the index beside the active one", ["state"])
REINDEX_SWITCHES = Counter("calmem_reindex_switches_total", "Times that this worker let recall go over to a new index")
VECTORS_REUSED = Counter(
    "calmem_vectors_reused_total", "Chunks whose vector this process took over from another index of the same model"
)
CACHE_SEARCHES = Counter(
    "calmem_cache_searches_total",
    "Searches by meaning: answered from the vector cache (hit), or from Postgres because of (miss) or past (scope) it",
    ["result"],
)
CACHE_DROPS = Counter("calmem_cache_drops_total", "Users whose vectors left the cache", ["reason"])
CACHE_BYTES = Gauge("calmem_cache_bytes", "Memory of the vector cache, fillings under way included")
CACHE_USERS = Gauge("calmem_cache_users", "Users in the vector cache")
REFUSED = Counter("calmem_requests_refused_total", "Requests refused for their key", ["reason"])
RATE_UNCHECKED = Counter(
    "calmem_rate_limit_unchecked_total", "Requests let through uncounted because Redis was away or slow"
)
GATEWAY_CHATS = Counter(
    "calmem_gateway_chats_total",
    "Chat requests by what memory did: (injected), had (nothing) to say, was (off), (failed), or no user was named (anonymous)",
    ["memory"],
)
GATEWAY_SECONDS = Histogram(
    "calmem_gateway_seconds",
    "Time a chat request spent in the gateway before the upstream was asked",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.5),
)
GATEWAY_UNRECORDED = Counter(
    "calmem_gateway_unrecorded_total", "Times that turns of a chat could not be recorded; their replay makes up for it"
)

_STATES_BESIDE = (IndexState.BUILDING, IndexState.PAUSED, IndexState.KEPT)
_UNKNOWN = float("nan")


def count_recall(found: Recall) -> None:
    """One recall that this process answered."""
    RECALL_TIERS.labels(found.tier.value).inc()
    if found.degraded:
        RECALL_DEGRADED.inc()
    for stage, milliseconds in found.timings_ms.items():
        RECALL_SECONDS.labels(stage).observe(milliseconds / 1_000)


def show_queue(found: QueueState) -> None:
    """What waits for its vectors."""
    for lane in Lane:
        PENDING.labels(lane.value).set(found.pending_by_lane[lane])
    for lane, age in found.age_by_lane.items():
        OLDEST_PENDING.labels(lane.value).set(age)
    LEASED.set(found.leased)
    FAILED.set(found.failed)


def show_reindex(found: Reindex | None) -> None:
    """The index beside the active one, None when there is none."""
    building = found is not None and found.index.state in (IndexState.BUILDING, IndexState.PAUSED)
    REINDEX_MESSAGES.set(found.messages if found is not None and building else 0)
    REINDEX_DONE.set(found.done if found is not None and building else 0)
    REINDEX_FAILED.set(0 if found is None else found.failed)
    left = None if found is None else found.seconds_left
    REINDEX_SECONDS_LEFT.set(_UNKNOWN if left is None else left)
    for state in _STATES_BESIDE:
        REINDEX_STATE.labels(state.value).set(found is not None and found.index.state is state)


def show_database_away() -> None:
    """What is read from the database is not known now; the number read last would lie."""
    DATABASE_UP.set(0)
    for gauge in (
        *(PENDING.labels(lane.value) for lane in Lane),
        *(OLDEST_PENDING.labels(lane.value) for lane in RECALL_LANES),
        *(REINDEX_STATE.labels(state.value) for state in _STATES_BESIDE),
        *(LEASED, FAILED, CHUNKS, REINDEX_MESSAGES, REINDEX_DONE, REINDEX_FAILED, REINDEX_SECONDS_LEFT),
    ):
        gauge.set(_UNKNOWN)


@contextmanager
def exposed(settings: Settings) -> Iterator[None]:
    """/metrics of a process that has no HTTP of its own, on `host` and `metrics_port` for the time of the block; 0: none.

    Raises PermanentError when the port is taken.
    """
    if settings.metrics_port == 0:
        yield
        return
    try:
        server, thread = start_http_server(settings.metrics_port, addr=settings.host)
    except OSError as exc:
        raise PermanentError(
            f"{settings.host}:{settings.metrics_port} cannot be served ({exc.strerror}); each worker and sweeper of a "
            "machine needs a CALMEM_METRICS_PORT of its own, or 0"
        ) from exc
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
