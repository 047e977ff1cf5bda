"""Connections: one pool per process, one transaction per `connection()`.

Nothing here or elsewhere leans on the state of a session, beyond the encoding and the form of times, which poolers keep
for each client: so one in transaction mode may stand before the server (docs/several-boxes.md).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Self, TypeAlias, TypeVar

import psycopg
from psycopg import conninfo
from psycopg import errors as pg
from psycopg.abc import Buffer, Params, PQGen, Query
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow
from psycopg.types.datetime import TimestamptzLoader
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from calmem import metrics
from calmem.errors import CalmemError, InvalidInput, Overtaken, PermanentError, TransientError
from calmem.settings import Settings

Connection: TypeAlias = psycopg.Connection[TupleRow]
T = TypeVar("T")

NETWORK_TIMEOUT_SECONDS = 10
# A busy server ends a statement a little after its time; only past that is its connection given up.
ANSWER_GRACE_SECONDS = 0.5
# How often a wait looks at signals; psycopg's own.
_INTERVAL = 0.1

# The schema of a database that has not been migrated; retrying does not help, saying so does.
_NOT_MIGRATED = (pg.UndefinedTable, pg.UndefinedColumn, pg.UndefinedObject)
# Class 53 of SQLSTATE: whatever is short may be there again, and the call is not to blame.
_SHORT_OF: dict[type[psycopg.Error], str] = {
    pg.DiskFull: "the database's disk is full: it takes no writes until there is space again",
    pg.OutOfMemory: "the database server is out of memory",
    pg.TooManyConnections: "the database server has no connection left: raise max_connections or lower CALMEM_POOL_SIZE",
    pg.ConfigurationLimitExceeded: "the database server has reached a limit of its configuration",
    pg.InsufficientResources: "the database server is short of resources",
}


def translated(exc: psycopg.Error) -> CalmemError:
    """The error of the database as one of ours, which says whether to try again.

    Never its text: that quotes rows, and rows are what people said.
    """
    if isinstance(exc, pg.QueryCanceled | pg.TransactionTimeout):
        return TransientError("the database took longer than the time allowed")
    if isinstance(exc, pg.DeadlockDetected | pg.SerializationFailure | pg.LockNotAvailable):
        return Overtaken("the database asked to try again")
    if isinstance(exc, pg.ForeignKeyViolation):
        return Overtaken("what this belongs to was deleted at the same moment; try again")
    if isinstance(exc, pg.ReadOnlySqlTransaction):
        return TransientError("the database takes no writes now: it is a standby or set to read only")
    if isinstance(exc, pg.InsufficientPrivilege):
        return PermanentError("the database user of CALMEM_DATABASE_URL lacks a right on calmem's tables: GRANT it")
    if isinstance(exc, _NOT_MIGRATED):
        return PermanentError("the database has not been set up: run `calmem db migrate`")
    for kind, meaning in _SHORT_OF.items():
        if isinstance(exc, kind):
            return TransientError(meaning)
    if isinstance(exc, psycopg.OperationalError | psycopg.InterfaceError | pg.IdleInTransactionSessionTimeout):
        return TransientError("the database cannot be reached")
    return PermanentError(f"the database refused a statement: {type(exc).__name__} ({exc.sqlstate or 'no code'})")


def check_url(url: str) -> None:
    """Raises InvalidInput for what is no address of a Postgres; never repeats it, since it may hold a password."""
    try:
        conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError as exc:
        raise InvalidInput("CALMEM_DATABASE_URL", "must be an address such as postgresql://user@host/database") from exc


def network(url: str, *, connect_seconds: int = 10, silence_seconds: int = NETWORK_TIMEOUT_SECONDS) -> dict[str, Any]:
    """Arguments of `psycopg.connect` with which a connection through a cut network ends after `silence_seconds`.

    Left to itself TCP sends again for a quarter of an hour, and does not look after a silent connection for two. What
    the URL says itself (`keepalives_idle=…`) stays.
    """
    given = conninfo.conninfo_to_dict(url)
    chosen = {
        "connect_timeout": connect_seconds,
        "keepalives_idle": max(1, silence_seconds // 2),
        "keepalives_interval": max(1, silence_seconds // 4),
        "keepalives_count": 3,
        "tcp_user_timeout": silence_seconds * 1_000,
    }
    return {name: value for name, value in chosen.items() if name not in given}


# The server's side of the same: a process that was cut off in the middle of a transaction holds its locks until the
# server notices. Of the connection, not of the transaction: behind a pooler it is the pooler's to notice its clients.
# And the only form of times that the driver reads, whatever the role's; a pooler keeps that apart for each client.
_SET_UP = """
SELECT set_config('datestyle', 'ISO', false),
       set_config('tcp_keepalives_idle', %(idle)s, false), set_config('tcp_keepalives_interval', %(interval)s, false),
       set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', %(silence_ms)s, false)
"""


# Where the session has one of these, the driver's own loader gives UTC in a fifth of the time.
_UTC = ("UTC", "Etc/UTC")


class _UtcLoader(TimestamptzLoader):
    """Times in UTC whatever the session's time zone is, which a pooler may share with others."""

    def load(self, data: Buffer) -> datetime:
        return super().load(data).astimezone(UTC)


class _Connection(psycopg.Connection[TupleRow]):
    """Waits for an answer until `answer_by` (of time.monotonic), also when nothing says that the network is cut."""

    answer_by = math.inf

    def wait(self, gen: PQGen[T], interval: float = _INTERVAL, timeout: float | None = None) -> T:
        if self.answer_by == math.inf:
            return super().wait(gen, interval, timeout)
        left = max(0.0, self.answer_by - time.monotonic())
        try:
            return super().wait(gen, interval, left if timeout is None else min(left, timeout))
        except psycopg.OperationalError:
            if time.monotonic() >= self.answer_by and self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                self.pgconn.finish()  # the answer may still come, and must not meet another statement
            raise


# Local to the transaction, so that it also holds behind a pooler. One user's scan is short: parallel workers and
# JIT cost more than they give, and reading the whole table instead of the user's part is never right.
_BOUNDS = """
SELECT set_config('statement_timeout', '{milliseconds}', true), set_config('max_parallel_workers_per_gather', '0', true),
       set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true), set_config('work_mem', '32MB', true)
"""


def bound_reads(conn: Connection, milliseconds: int) -> None:
    """Set up this transaction for search: statements past that time end with an error; plans follow the user."""
    conn.execute(_BOUNDS.format(milliseconds=max(1, milliseconds)).encode())


class _OneMessage(psycopg.ClientCursor[TupleRow]):
    """Sends each statement, or several with `;` between, in one message with the bounds of `bound_reads`.

    Postgres runs a message as one transaction. Text results only.
    """

    def execute(
        self, query: Query, params: Params | None = None, *, prepare: bool | None = None, binary: bool | None = None
    ) -> Self:
        conn = self.connection
        assert isinstance(conn, _Connection)
        left = conn.answer_by - ANSWER_GRACE_SECONDS - time.monotonic()
        bounds = _BOUNDS.format(milliseconds=max(1, int(left * 1_000)))
        super().execute(f"{bounds};{self.mogrify(query, params)}".encode(), prepare=prepare, binary=binary)
        self.nextset()
        return self


class Database:
    """A pool of connections to one database. Safe to share between threads.

    Every outage (server away or read-only, pool empty, statement over its time) is a TransientError; whatever else the
    database refuses is a PermanentError.
    """

    def __init__(self, settings: Settings, *, database_url: str | None = None) -> None:
        url = database_url if database_url is not None else settings.database_url
        if not url:
            raise PermanentError("no database: set CALMEM_DATABASE_URL (postgresql://…) or start one with `calmem up`")
        check_url(url)
        if settings.pool_size < 1:
            raise InvalidInput("CALMEM_POOL_SIZE", "must be 1 or more")
        if settings.network_timeout_seconds < 1:
            raise InvalidInput("CALMEM_NETWORK_TIMEOUT_SECONDS", "must be 1 or more")
        self._wait = settings.pool_wait_seconds
        self._lock = threading.Lock()
        self._busy = 0  # connections that a caller has
        self._silence_seconds = settings.network_timeout_seconds
        self._pool: ConnectionPool[_Connection] = ConnectionPool(
            url,
            connection_class=_Connection,
            min_size=1,
            max_size=settings.pool_size,
            timeout=settings.pool_wait_seconds,
            open=False,
            configure=self._configure,
            reconnect_timeout=settings.pool_wait_seconds,
            kwargs={
                **network(
                    url,
                    connect_seconds=settings.connect_timeout_seconds,
                    silence_seconds=settings.network_timeout_seconds,
                ),
                "application_name": "calmem",
                "client_encoding": "utf8",  # whatever the role's: people write in every script
                # A pooler in transaction mode keeps no statement between two transactions.
                "prepare_threshold": None,
            },
            name="calmem",
        )

    def _configure(self, conn: _Connection) -> None:
        if conn.info.parameter_status("TimeZone") not in _UTC:
            conn.adapters.register_loader("timestamptz", _UtcLoader)
        silence = self._silence_seconds
        values = {"idle": max(1, silence // 2), "interval": max(1, silence // 4), "silence_ms": silence * 1_000}
        conn.execute(_SET_UP, {name: str(value) for name, value in values.items()})
        conn.commit()

    def open(self) -> None:
        """Start the pool; returns at once, the first `connection()` waits for the server."""
        self._pool.open(wait=False)

    def close(self) -> None:
        self._pool.close()

    def __enter__(self) -> Database:
        self.open()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @contextmanager
    def connection(self, timeout: float | None = None, *, answer_seconds: float = math.inf) -> Iterator[Connection]:
        """One transaction: committed at the end, rolled back on an exception.

        `timeout`: seconds to wait for a free connection; `answer_seconds`: longest time for the whole transaction,
        where the caller cannot wait until the network is known to be cut. Raises TransientError on any outage,
        Overtaken, and PermanentError when a statement is refused.
        """
        began = time.monotonic()
        with self._translating("busy" if timeout is None else "deadline"):
            conn = self._take(began + (self._wait if timeout is None else timeout))
            with self._lent(conn, answer_by=began + answer_seconds), conn:
                yield conn

    def read(self, call: Callable[[Connection], T], seconds: float) -> T:
        """What `call` reads. Each of its statements is a transaction of its own, sent in one message, and ends by then.

        No connection is looked at before it is used: where one turns out to be dead, `call` is made again with
        another. Raises as `connection`.
        """
        deadline = time.monotonic() + seconds
        with self._translating("deadline"):
            while True:
                conn = self._pool.getconn(max(0.0, deadline - time.monotonic()))
                with self._lent(conn, answer_by=deadline + ANSWER_GRACE_SECONDS):
                    try:
                        conn.autocommit, conn.cursor_factory = True, _OneMessage
                        return call(conn)
                    except psycopg.OperationalError:
                        if not conn.closed or time.monotonic() >= deadline:
                            raise

    @contextmanager
    def _lent(self, conn: _Connection, *, answer_by: float) -> Iterator[None]:
        self._count_busy(1)
        try:
            conn.answer_by = answer_by
            yield
        finally:
            self._count_busy(-1)
            conn.answer_by = math.inf
            self._pool.putconn(conn)

    @contextmanager
    def _translating(self, busy: str) -> Iterator[None]:
        """Errors of the pool and the database as ours. `busy`: what ended the wait for a connection that others had."""
        try:
            yield
        except (PoolTimeout, TooManyRequests) as exc:
            all_busy = self._busy >= self._pool.max_size
            why = busy if all_busy or busy == "deadline" else "away"
            metrics.POOL_TIMEOUTS.labels(why).inc()
            raise TransientError(
                f"no database connection in time: all {self._pool.max_size} are busy"
                if all_busy
                else "no database connection in time: the server cannot be reached or is slow"
            ) from exc
        except PoolClosed as exc:
            raise TransientError("the database pool is closed") from exc
        except psycopg.Error as exc:
            raise translated(exc) from exc

    def _count_busy(self, change: int) -> None:
        with self._lock:
            self._busy += change

    def _take(self, deadline: float) -> _Connection:
        """A connection that answers. One that died with its server or network is found before it is handed out."""
        while True:
            conn = self._pool.getconn(max(0.0, deadline - time.monotonic()))
            conn.answer_by = deadline + ANSWER_GRACE_SECONDS
            try:
                conn.autocommit, conn.cursor_factory = False, psycopg.Cursor  # `read` leaves them as it needs them
                ConnectionPool.check_connection(conn)
                return conn
            except psycopg.Error:
                conn.close()
                self._pool.putconn(conn)
            except BaseException:
                self._pool.putconn(conn)
                raise

    def stats(self) -> dict[str, int]:
        """Counters of the pool, as psycopg_pool names them (`pool_size`, `pool_available`, …)."""
        return dict(self._pool.get_stats())
