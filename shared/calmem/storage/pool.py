"""Connections: one pool per process, one transaction per `connection()`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import psycopg
from psycopg import conninfo
from psycopg import errors as pg
from psycopg.rows import TupleRow
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from calmem.errors import CalmemError, InvalidInput, Overtaken, PermanentError, TransientError
from calmem.settings import Settings

Connection: TypeAlias = psycopg.Connection[TupleRow]

# The schema of a database that has not been migrated; retrying does not help, saying so does.
_NOT_MIGRATED = (pg.UndefinedTable, pg.UndefinedColumn, pg.UndefinedObject)


def translated(exc: psycopg.Error) -> CalmemError:
    """The error of the database as one of ours, which says whether to try again.

    Never its text: that quotes rows, and rows are what people said.
    """
    if isinstance(exc, pg.QueryCanceled):
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
    if isinstance(exc, psycopg.OperationalError | psycopg.InterfaceError | pg.IdleInTransactionSessionTimeout):
        return TransientError("the database cannot be reached")
    return PermanentError(f"the database refused a statement: {type(exc).__name__} ({exc.sqlstate or 'no code'})")


def check_url(url: str) -> None:
    """Raises InvalidInput for what is no address of a Postgres; never repeats it, since it may hold a password."""
    try:
        conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError as exc:
        raise InvalidInput("CALMEM_DATABASE_URL", "must be an address such as postgresql://user@host/database") from exc


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
        self._wait = settings.pool_wait_seconds
        self._pool: ConnectionPool[Connection] = ConnectionPool(
            url,
            min_size=1,
            max_size=settings.pool_size,
            timeout=settings.pool_wait_seconds,
            open=False,
            # A connection that died with its server is found before it is handed out.
            check=ConnectionPool.check_connection,
            reconnect_timeout=settings.pool_wait_seconds,
            kwargs={
                "connect_timeout": settings.connect_timeout_seconds,
                "application_name": "calmem",
                # pgbouncer in transaction mode keeps no statement between two transactions.
                "prepare_threshold": None,
                "options": "-c timezone=UTC",
            },
            name="calmem",
        )

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
    def connection(self, timeout: float | None = None) -> Iterator[Connection]:
        """One transaction: committed at the end, rolled back on an exception.

        `timeout`: seconds to wait for a free connection. Raises TransientError on any outage, Overtaken, and
        PermanentError when a statement is refused.
        """
        try:
            with self._pool.connection(timeout=self._wait if timeout is None else timeout) as conn:
                yield conn
        except (PoolTimeout, TooManyRequests) as exc:
            raise TransientError(
                "no database connection in time: the server cannot be reached, or all connections are busy"
            ) from exc
        except PoolClosed as exc:
            raise TransientError("the database pool is closed") from exc
        except psycopg.Error as exc:
            raise translated(exc) from exc

    def stats(self) -> dict[str, int]:
        """Counters of the pool, as psycopg_pool names them (`pool_size`, `pool_available`, …)."""
        return dict(self._pool.get_stats())
