"""The search behind recall: both arms side by side within a deadline, fused, loaded and ranked."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeVar
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from calmem import packing, ranking, timephrases, words
from calmem.cache import VectorCache
from calmem.embedding import Embedder, understands
from calmem.errors import ModelUnavailable, TransientError
from calmem.held import View
from calmem.hits import DenseHit, DenseHits, Window, WordHits
from calmem.model import Budget, Item, SearchIndex, StoredUser
from calmem.models import Models
from calmem.settings import Settings
from calmem.soft_match import WordTable
from calmem.storage import search
from calmem.storage.pool import ANSWER_GRACE_SECONDS, Connection, Database, bound_reads
from calmem.storage.search import Scope

ARMS = ("dense", "words")
# How many of what was found are loaded with their text.
LOADED = 80
_LATE = "past the deadline"
# Loading what was found may take so long, even past the deadline: without it the search was for nothing.
LOAD_SECONDS = 0.05
# So may reading who asks and the facts: one that waited for its turn past the deadline is answered with them.
CONTEXT_SECONDS = 0.2

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What of a user's memory one request may search; `speakers`: the names of who spoke in it."""

    user: StoredUser
    scope: Scope
    index: SearchIndex
    speakers: Sequence[str]
    hide: Callable[[Connection], list[int]]  # chunk_nos of the active context as it is now


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A query that is being embedded before it is known whose memory is asked."""

    query: str
    index_no: int
    vector: Future[NDArray[np.float32]]  # (dimension,), unit length


@dataclass(kw_only=True)
class Trace:
    """Filled by one recall with what it considered, for `calmem.explaining`."""

    memory: Memory | None = None
    dense: DenseHits = field(default_factory=DenseHits)
    words: WordHits = field(default_factory=WordHits)
    about: bool = True
    near: frozenset[int] = frozenset()  # chunk_nos good enough by meaning alone
    best: frozenset[int] = frozenset()  # chunk_nos that were loaded and ranked, if they were still in sight
    ranked: Sequence[Item] = ()
    pack: Callable[[Budget], packing.Packed] | None = None  # what recall makes of `ranked`, for any budget


def hide_nothing(_conn: Connection) -> list[int]:
    return []


class Clock:
    """The deadline of one request and the time its stages took."""

    def __init__(self, deadline_ms: int, *, began: float | None = None) -> None:
        self._start = time.perf_counter() if began is None else began
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
        """The times so far; a stage that nobody waits for any more may still end."""
        return {**self.timings_ms, "total": round((time.perf_counter() - self._start) * 1_000, 3)}

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
        # The stages of a request run side by side here; a thread waits on Postgres or in the runtime. None waits for one
        # that was submitted after it, so they cannot all wait.
        self._threads = ThreadPoolExecutor(max_workers=6 * settings.pool_size, thread_name_prefix="recall")
        self._last_index: SearchIndex | None = None

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        if self._cache is not None:
            self._cache.close()

    def begin(self, asked: str, clock: Clock, *, arms: Collection[str], now: datetime) -> Begun | None:
        """Start to embed the query for the index that was searched last; None when there is nothing to begin."""
        index = self._last_index
        if index is None or "dense" not in arms or not asked.strip() or clock.left() == 0:
            return None
        query = _without_time(timephrases.read(asked, now=now, zone=ZoneInfo("UTC")), asked)
        vector = self._threads.submit(self._embed, query, index, clock)
        return Begun(query=query, index_no=index.index_no, vector=vector)

    def find(
        self,
        asked: str,
        memory: Memory,
        clock: Clock,
        *,
        arms: Collection[str],
        now: datetime,
        begun: Begun | None,
        trace: Trace | None = None,
    ) -> list[Item]:
        """Both arms side by side, fused and ranked, best first; nothing once the deadline is past."""
        if clock.left() == 0:
            clock.skipped.append(f"search: {_LATE}")
            return []
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
        query = _without_time(view, asked)
        named = words.named(query, memory.speakers)
        tokens = words.query_words(query, speakers=named)
        dense = words_found = None
        if "words" in arms and tokens:
            words_found = self._threads.submit(self._words, tokens, memory.user, scopes, clock)
        if "dense" in arms and memory.index.dimension is not None:
            self._last_index = memory.index
            if begun is not None and begun.query == query and begun.index_no == memory.index.index_no:
                vector = begun.vector
            else:
                vector = self._threads.submit(self._embed, query, memory.index, clock)
            dense = self._threads.submit(self._dense, query, vector, scopes, memory.index, clock)
        dense_hits, table = self._wait(dense, "dense", clock) or (None, None)
        word_hits: WordHits | None = self._wait(words_found, "words", clock)
        if "dense" in arms and memory.index.dimension is None:
            dense_hits = DenseHits()  # no vector has been written yet
        script = words.script(query)
        own = memory.index.min_cosine
        min_cosine = self._settings.min_cosine if own is None else own
        meant, said = dense_hits or DenseHits(), word_hits or WordHits()
        if trace is not None:
            trace.dense, trace.words = meant, said
        # One arm alone cannot tell; its own threshold has to do.
        if (
            dense_hits is not None
            and word_hits is not None
            and not ranking.is_about(
                dense_hits,
                word_hits,
                script=script,
                min_cosine=min_cosine,
            )
        ):
            if trace is not None:
                trace.about = False
            return []
        weights = ranking.weights(script, understood=meant.understood)
        told = {hit.chunk_no for hit in said.hits}
        near = [h.chunk_no for h in meant.hits if h.cosine >= min_cosine and h.chunk_no not in told]

        if trace is not None:
            trace.near = frozenset(near)

        def load(conn: Connection) -> list[Item]:
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
                min_cosine=min_cosine,
                limit=LOADED,
            )
            if trace is not None:
                trace.best = frozenset(one.chunk_no for one in found if one.chunk_no is not None)
            loaded = search.load_items(
                conn,
                visible,
                [one.chunk_no for one in found if one.chunk_no is not None],
                [one.place for one in found if one.chunk_no is None],
            )
            return ranking.rank(
                loaded, found, weights=weights, speakers=named, latest_first=view.latest_first, query=query, table=table
            )

        if not told and not near:
            return []
        try:
            return clock.stage("load", lambda: self.read(clock, load, least=LOAD_SECONDS))
        except TransientError as exc:
            clock.skipped.append(f"load: {exc}")
            return []

    def _embedder(self, index: SearchIndex, clock: Clock) -> Embedder:
        return clock.stage("model", lambda: self._models.for_index(index, wait_seconds=clock.left()))

    def _embed(self, query: str, index: SearchIndex, clock: Clock) -> NDArray[np.float32]:
        if clock.left() == 0:
            raise TransientError(_LATE)  # nobody waits for it any more
        embedder = self._embedder(index, clock)
        return clock.stage("embed", lambda: embedder.embed_query(_known_part(embedder, query)))

    def _dense(
        self, query: str, vector: Future[NDArray[np.float32]], scopes: Sequence[Scope], index: SearchIndex, clock: Clock
    ) -> tuple[DenseHits, WordTable | None]:
        """The hits of every scope; the first is the widest. What needs no vector is done while it is computed.

        And the model's words, for the ranking.
        """
        assert index.dimension is not None
        dimension, limit = index.dimension, self._settings.candidates
        views: list[View | None] = [None] * len(scopes)
        cache = self._cache
        if cache is not None:

            def view(conn: Connection) -> list[View | None]:
                return [cache.view(conn, scope, dimension) for scope in scopes]

            views = clock.stage("cache", lambda: self.read(clock, view))
        embedder = self._embedder(index, clock)
        understood = understands(embedder, _known_part(embedder, query))
        near_to = vector.result(timeout=clock.left())
        missing = [scope for scope, held in zip(scopes, views, strict=True) if held is None]

        def scan(conn: Connection) -> list[list[DenseHit]]:
            return [search.dense(conn, scope, near_to, limit) for scope in missing]

        def compare() -> list[list[DenseHit]]:
            scanned = iter(self._scan(clock, scan) if missing else ())
            return [next(scanned) if held is None else held.dense(near_to, limit) for held in views]

        found = clock.stage("dense", compare)
        hits = DenseHits(
            hits=list({hit.chunk_no: hit for hits in found for hit in hits}.values()),
            complete=len(found[0]) < limit,
            understood=understood,
        )
        return hits, embedder.words

    def _words(
        self, asked: Sequence[words.QueryWord], user: StoredUser, scopes: Sequence[Scope], clock: Clock
    ) -> WordHits:
        """As `_dense`. How common a word is goes by the widest scope, where a chunk was found in both."""
        tokens = words.query_tokens(user.key, asked)

        def match(conn: Connection) -> list[WordHits]:
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
            clock.skipped.append(f"{name}: {_LATE}")
        except TransientError as exc:
            clock.skipped.append(f"{name}: {exc}")
        except ModelUnavailable as exc:
            clock.skipped.append(f"{name}: {exc}")
        return None

    def read(self, clock: Clock, call: Callable[[Connection], T], *, least: float = 0.001) -> T:
        """As `Database.read`, until the deadline, and at least for that many seconds, also when the network is cut."""
        return self._database.read(call, max(clock.left(), least))

    def _scan(self, clock: Clock, call: Callable[[Connection], T]) -> T:
        """The same in one transaction, which gives vectors in their binary form."""
        seconds = max(clock.left(), 0.001)
        with self._database.connection(seconds, answer_seconds=seconds + ANSWER_GRACE_SECONDS) as conn:
            bound_reads(conn, int(seconds * 1_000))
            return call(conn)


def _later(a: datetime | None, b: datetime | None) -> datetime | None:
    return max(a, b) if a is not None and b is not None else a or b


def _earlier(a: datetime | None, b: datetime | None) -> datetime | None:
    return min(a, b) if a is not None and b is not None else a or b


def _without_time(view: timephrases.TimeView, asked: str) -> str:
    """What the query asks for; the whole of it where it says nothing but a time."""
    return view.rest if view.rest.strip() else asked


def _known_part(embedder: Embedder, query: str) -> str:
    """What of the query is embedded: of one in two scripts, without the one that the model does not know."""
    spaced = words.spaced_part(query)
    return query if spaced == query or understands(embedder, query) else spaced
