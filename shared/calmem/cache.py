"""Users' vectors in memory, searched exactly, never older than the database (docs/decisions/0007-vector-cache.md)."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import structlog

from calmem import metrics
from calmem.errors import CalmemError, TransientError
from calmem.held import BLOCK_ROWS, Block, Held, View
from calmem.storage import vectors
from calmem.storage.pool import Connection, Database
from calmem.storage.search import Scope
from calmem.storage.vectors import Marks, Vectors

log = structlog.get_logger(__name__)

# Up to so many new vectors are added within a search; with more, Postgres answers and the user is filled anew.
MOST_NEW = 2_000
FILL_THREADS = 2
# How soon what was forgotten leaves the memory of a process in which nobody asks for it any more.
SWEEP_SECONDS = 1.0
# When a filling that found no room, or failed, may be tried again.
AGAIN_SECONDS = 60.0

Key: TypeAlias = tuple[int, int]  # user_no, index_no
Reason: TypeAlias = Literal["forgotten", "room", "outgrown"]


@dataclass(kw_only=True)
class _User:
    """The one mutable place of a user's state; `extending` is held by who adds to it."""

    held: Held
    extending: threading.Lock = field(default_factory=threading.Lock)


class _NoRoom(Exception):
    """A filling would take the cache over its bound."""


class VectorCache:
    """Vectors of recently searched users within `megabytes` (of 2^20 bytes). Safe to share between threads.

    A user's first search starts a filling in the background; until it ends, and whenever the cache cannot answer,
    the caller asks Postgres.
    """

    def __init__(self, database: Database, *, megabytes: int, fill_threads: int = FILL_THREADS) -> None:
        self._database = database
        self._bound = megabytes * 2**20
        self._fillers = ThreadPoolExecutor(max_workers=fill_threads, thread_name_prefix="cache-fill")
        # Guards everything below; never held while waiting for anything.
        self._lock = threading.Lock()
        self._users: OrderedDict[Key, _User] = OrderedDict()  # least recently used first
        self._filling: set[Key] = set()
        self._not_before: dict[Key, float] = {}
        self._bytes = 0
        self._closed = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, name="cache-sweep", daemon=True)
        self._sweeper.start()

    def close(self) -> None:
        """End the threads and drop everything."""
        with self._lock:
            self._closed.set()
        self._fillers.shutdown(wait=True, cancel_futures=True)
        self._sweeper.join()
        with self._lock:
            self._users.clear()
            self._bytes = 0
            self._show()

    @property
    def nbytes(self) -> int:
        """Memory of all vectors, those of fillings under way included; at most the bound."""
        return self._bytes

    @property
    def filling(self) -> bool:
        with self._lock:
            return bool(self._filling)

    def holds(self, user_no: int, index_no: int) -> bool:
        with self._lock:
            return (user_no, index_no) in self._users

    def view(self, conn: Connection, scope: Scope, dimension: int) -> View | None:
        """The scope's vectors as the database has them now; None: ask `storage.search.dense`.

        One short statement says what was written and removed up to now.
        """
        if scope.narrowed:
            metrics.CACHE_SEARCHES.labels("scope").inc()
            return None
        view = self._view(conn, scope, dimension)
        metrics.CACHE_SEARCHES.labels("miss" if view is None else "hit").inc()
        return view

    def _view(self, conn: Connection, scope: Scope, dimension: int) -> View | None:
        key = (scope.user_no, scope.index_no)
        with self._lock:
            user = self._users.get(key)
            if user is not None:
                self._users.move_to_end(key)
        if user is None:
            self._start(key, dimension)
            return None
        held = user.held
        read = vectors.read_since(
            conn,
            user_no=scope.user_no,
            index_no=scope.index_no,
            after=held.written,
            limit=MOST_NEW + 1,
            dimension=dimension,
        )
        if read is None:
            self._drop(key, user, "forgotten")
            return None
        marks, new = read
        if marks.removed != held.removed or len(new.chunk_nos) > MOST_NEW:
            self._drop(key, user, "forgotten" if marks.removed != held.removed else "outgrown")
            self._start(key, dimension)
            return None
        if marks.written < held.filled:
            return None
        if marks.written > held.written:
            held = self._extend(key, user, marks, new)
        return View(held=held, mark=marks.written, hidden=scope.hidden)

    def _extend(self, key: Key, user: _User, marks: Marks, new: Vectors) -> Held:
        with user.extending:
            before = user.held
            after = before.extended(marks, new)
            with self._lock:
                user.held = after
                if self._users.get(key) is user:
                    self._bytes += after.nbytes - before.nbytes
                    self._make_room()
        return after

    def _start(self, key: Key, dimension: int) -> None:
        """Begin a filling, unless one is under way or was tried a short time ago in vain."""
        with self._lock:
            now = time.monotonic()
            if self._closed.is_set() or key in self._filling or key in self._users:
                return
            if self._not_before.get(key, now) > now:
                return
            self._filling.add(key)
            self._fillers.submit(self._fill, key, dimension)

    def _fill(self, key: Key, dimension: int) -> None:
        blocks: list[Block] = []
        taken = 0
        failed = True
        try:
            with self._database.connection() as conn:
                read = vectors.read_all(
                    conn, user_no=key[0], index_no=key[1], dimension=dimension, slice_rows=BLOCK_ROWS
                )
                if read is not None:
                    marks, rows, slices = read
                    if rows * Block.empty(1, dimension).nbytes > self._bound:
                        raise _NoRoom  # before anybody else has to leave for it
                    with closing(slices):
                        for part in slices:
                            block = Block.empty(len(part.chunk_nos), dimension)
                            block.put(0, part)
                            self._reserve(block.nbytes)
                            taken += block.nbytes
                            blocks.append(block)
            failed = False
        except _NoRoom:
            log.info("cache_no_room", user_no=key[0], megabytes=self._bound // 2**20)
        except CalmemError as exc:
            log.warning("cache_not_filled", user_no=key[0], error=str(exc))
        except Exception:  # a thread's outermost frame: nobody would ever see it
            log.exception("cache_not_filled", user_no=key[0])
        finally:
            with self._lock:
                self._filling.discard(key)
                if failed or read is None or self._closed.is_set():
                    self._bytes -= taken
                    self._later(key)
                else:
                    used = len(blocks[-1].chunk_nos) if blocks else 0
                    held = Held(
                        removed=marks.removed,
                        filled=marks.written,
                        written=marks.written,
                        blocks=tuple(blocks),
                        used=used,
                    )
                    self._users[key] = _User(held=held)
                self._show()

    def _reserve(self, nbytes: int) -> None:
        """Room for a filling's next block, at the cost of who was not asked for the longest time."""
        with self._lock:
            if self._closed.is_set():
                raise _NoRoom
            self._bytes += nbytes
            self._make_room()
            if self._bytes > self._bound:
                self._bytes -= nbytes
                raise _NoRoom

    def _make_room(self) -> None:
        while self._bytes > self._bound and self._users:
            key, user = next(iter(self._users.items()))
            if len(self._users) == 1 and not self._filling:
                self._later(key)  # alone too large
            self._forget(key, user, "room")
        self._show()

    def _later(self, key: Key) -> None:
        now = time.monotonic()
        self._not_before = {other: at for other, at in self._not_before.items() if at > now}
        self._not_before[key] = now + AGAIN_SECONDS

    def _drop(self, key: Key, user: _User, reason: Reason) -> None:
        with self._lock:
            if self._users.get(key) is user:
                self._forget(key, user, reason)
                self._show()

    def _forget(self, key: Key, user: _User, reason: Reason) -> None:
        del self._users[key]
        self._bytes -= user.held.nbytes
        metrics.CACHE_DROPS.labels(reason).inc()

    def _show(self) -> None:
        metrics.CACHE_BYTES.set(self._bytes)
        metrics.CACHE_USERS.set(len(self._users))

    def _sweep(self) -> None:
        """Drop, soon, what was forgotten although nobody asks for it in this process any more."""
        while not self._closed.wait(SWEEP_SECONDS):
            with self._lock:
                held = dict(self._users)
            if not held:
                continue
            try:
                with self._database.connection() as conn:
                    marks = vectors.removal_marks(conn, [user_no for user_no, _ in held])
            except TransientError:
                continue
            except CalmemError as exc:
                log.warning("cache_not_swept", error=str(exc))
                continue
            for key, user in held.items():
                if marks.get(key) != user.held.removed:
                    self._drop(key, user, "forgotten")
