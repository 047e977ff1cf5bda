"""The search behind recall: both arms side by side within a deadline, fused, loaded and ranked."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar
from zoneinfo import ZoneInfo

from calmem import ranking, timephrases, words
from calmem.cache import VectorCache
from calmem.embedding import understands
from calmem.errors import ModelUnavailable, TransientError
from calmem.model import DenseHit, DenseHits, Item, SearchIndex, User, Window, WordHits
from calmem.models import Models
from calmem.settings import Settings
from calmem.storage import search
from calmem.storage.pool import ANSWER_GRACE_SECONDS, Connection, Database
from calmem.storage.search import Scope

ARMS = ("dense", "words")
# How many of what was found are loaded with their text.
LOADED = 80
# Loading what was found may take so long, even past the deadline: without it the search was for nothing.
LOAD_SECONDS = 0.05

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What of a user's memory one request may search; `speakers`: the names of who spoke in it."""

    user: User
    scope: Scope
    index: SearchIndex
    speakers: Sequence[str]
    hide: Callable[[Connection], list[int]]  # chunk_nos of the active context as it is now


def hide_nothing(_conn: Connection) -> list[int]:
    return []


class Clock:
    """The deadline of one request and the time its stages took."""

    def __init__(self, deadline_ms: int) -> None:
        self._start = time.perf_counter()
        self._deadline = self._start + deadline_ms / 1_000
        self.timings_ms: dict[str, float] = {}
        self.skipped: list[str] = []

    def left(self) -> float:
        """Seconds until the deadline, never negative."""
        return max(0.0, self._deadline - time.perf_counter())

    def stage(self, name: str, call: Callable[[], T]) -> T:
        began = time.perf_counter()
        try:
            return call()
        finally:
            self.timings_ms[name] = round((time.perf_counter() - began) * 1_000, 3)

    def finish(self) -> dict[str, float]:
        self.timings_ms["total"] = round((time.perf_counter() - self._start) * 1_000, 3)
        return self.timings_ms

    @property
    def degraded(self) -> str | None:
        return "; ".join(self.skipped) or None


class Searcher:
    """Finds items. Safe to share between threads."""

    def __init__(self, database: Database, settings: Settings, models: Models) -> None:
        self._database = database
        self._settings = settings
        self._models = models
        self._cache = VectorCache(database, megabytes=settings.cache_megabytes) if settings.cache_megabytes else None
        # Both arms of a request run side by side here; a thread waits on Postgres or in the runtime.
        self._threads = ThreadPoolExecutor(max_workers=4 * settings.pool_size, thread_name_prefix="recall")

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        if self._cache is not None:
            self._cache.close()

    def find(self, asked: str, memory: Memory, clock: Clock, *, arms: Collection[str], now: datetime) -> list[Item]:
        """Both arms side by side, fused and ranked, best first."""
        view = timephrases.read(asked, now=now, zone=ZoneInfo(memory.user.time_zone))
        scope = memory.scope
        narrowed = replace(scope, since=_later(scope.since, view.since), until=_earlier(scope.until, view.until))
        window = None
        if view.told:
            scopes = [narrowed]
        elif view.since is None and view.until is None:
            scopes = [scope]
        else:
            # Of what happened then, most was told then, but not all: the window is searched too, and preferred.
            scopes, window = [scope, narrowed], Window(since=view.since, until=view.until)
        query = view.rest if view.rest.strip() else asked
        named = words.named(query, memory.speakers)
        tokens = words.query_words(query, speakers=named)
        dense = words_found = None
        if "dense" in arms and memory.index.dimension is not None:
            dense = self._threads.submit(self._dense, query, scopes, memory.index, clock)
        if "words" in arms and tokens:
            words_found = self._threads.submit(self._words, tokens, memory.user, scopes, clock)
        dense_hits: DenseHits | None = self._wait(dense, "dense", clock)
        word_hits: WordHits | None = self._wait(words_found, "words", clock)
        if "dense" in arms and memory.index.dimension is None:
            dense_hits = DenseHits()  # no vector has been written yet
        script = words.script(query)
        # One arm alone cannot tell; its own threshold has to do.
        if (
            dense_hits is not None
            and word_hits is not None
            and not ranking.is_about(
                dense_hits,
                word_hits,
                script=script,
                min_cosine=self._settings.min_cosine,
            )
        ):
            return []
        meant, said = dense_hits or DenseHits(), word_hits or WordHits()
        weights = ranking.weights(script, understood=meant.understood)
        told = {hit.chunk_no for hit in said.hits}
        near = [h.chunk_no for h in meant.hits if h.cosine >= self._settings.min_cosine and h.chunk_no not in told]

        def load(conn: Connection) -> list[Item]:
            search.bound_reads(conn, int(max(clock.left(), LOAD_SECONDS) * 1_000))
            # The host may be recording the very turn that asks, and a worker may be cutting the active ones anew.
            hidden = set(memory.hide(conn))
            visible = replace(scopes[0], hidden=sorted(hidden))
            places = {hit.chunk_no: hit.place for hit in said.hits if hit.chunk_no not in hidden}
            sent = {hit.chunk_no: hit.sent for hit in said.hits}
            if near:
                more_places, more_sent = search.places(conn, visible, [no for no in near if no not in hidden])
                places |= more_places
                sent |= more_sent
            found = ranking.fuse(
                meant.hits,
                said.hits,
                places,
                added={} if window is None else ranking.timely(sent, window),
                weights=weights,
                min_cosine=self._settings.min_cosine,
                limit=LOADED,
            )
            loaded = search.load_items(
                conn,
                visible,
                [one.chunk_no for one in found if one.chunk_no is not None],
                [one.place for one in found if one.chunk_no is None],
            )
            return ranking.rank(loaded, found, weights=weights, speakers=named, latest_first=view.latest_first)

        if not told and not near:
            return []
        try:
            return clock.stage("load", lambda: self.read(clock, load, least=LOAD_SECONDS))
        except TransientError as exc:
            clock.skipped.append(f"load: {exc}")
            return []

    def _dense(self, query: str, scopes: Sequence[Scope], index: SearchIndex, clock: Clock) -> DenseHits:
        """The hits of every scope; the first is the widest."""
        embedder = clock.stage("model", lambda: self._models.for_index(index, wait_seconds=clock.left()))
        vector = clock.stage("embed", lambda: embedder.embed_query(query))
        limit = self._settings.candidates

        def scan(conn: Connection) -> list[list[DenseHit]]:
            search.bound_reads(conn, int(clock.left() * 1_000))
            found = []
            for scope in scopes:
                held = None if self._cache is None else self._cache.dense(conn, scope, vector, limit)
                found.append(search.dense(conn, scope, vector, limit) if held is None else held)
            return found

        found = clock.stage("dense", lambda: self.read(clock, scan))
        return DenseHits(
            hits=list({hit.chunk_no: hit for hits in found for hit in hits}.values()),
            complete=len(found[0]) < limit,
            understood=understands(embedder, query),
        )

    def _words(self, asked: Sequence[words.QueryWord], user: User, scopes: Sequence[Scope], clock: Clock) -> WordHits:
        """As `_dense`. How common a word is goes by the widest scope, where a chunk was found in both."""
        tokens = words.query_tokens(user.key, asked)

        def match(conn: Connection) -> list[WordHits]:
            search.bound_reads(conn, int(clock.left() * 1_000))
            return [search.words(conn, scope, tokens, self._settings.candidates) for scope in scopes]

        found = clock.stage("words", lambda: self.read(clock, match))
        hits = {hit.chunk_no: hit for one in reversed(found) for hit in one.hits}
        return WordHits(hits=list(hits.values()), known=found[0].known)

    def _wait(self, arm: Future[T] | None, name: str, clock: Clock) -> T | None:
        """The arm's hits; None, and a reason in `degraded`, when it failed or is late."""
        if arm is None:
            return None
        try:
            return arm.result(timeout=clock.left())
        except TimeoutError:
            arm.cancel()
            clock.skipped.append(f"{name}: past the deadline")
        except TransientError as exc:
            clock.skipped.append(f"{name}: {exc}")
        except ModelUnavailable as exc:
            clock.skipped.append(f"{name}: {exc}")
        return None

    def read(self, clock: Clock, call: Callable[[Connection], T], *, least: float = 0.001) -> T:
        """One read transaction until the deadline, and at least that many seconds, also when the network is cut."""
        seconds = max(clock.left(), least)
        with self._database.connection(seconds, answer_seconds=seconds + ANSWER_GRACE_SECONDS) as conn:
            return call(conn)


def _later(a: datetime | None, b: datetime | None) -> datetime | None:
    return max(a, b) if a is not None and b is not None else a or b


def _earlier(a: datetime | None, b: datetime | None) -> datetime | None:
    return min(a, b) if a is not None and b is not None else a or b
