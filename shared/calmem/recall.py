"""Use case: recall. Reads Postgres and the model, never the queue; answers within its deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar, get_args
from zoneinfo import ZoneInfo

from calmem import budget, ranking, text, timephrases, words
from calmem.cache import VectorCache
from calmem.embedding import understands
from calmem.errors import InvalidInput, ModelUnavailable, TransientError
from calmem.model import (
    Block,
    Budget,
    DenseHit,
    DenseHits,
    Fact,
    Item,
    Recall,
    SearchIndex,
    Style,
    Tier,
    User,
    WordHits,
)
from calmem.models import Models
from calmem.settings import Settings
from calmem.storage import facts, indexes, search, users
from calmem.storage.pool import Connection, Database
from calmem.storage.search import Scope

ARMS = ("dense", "words")
MAX_K = 1_000
QUERY_BYTES = 65_536
# How many of what was found are loaded with their text.
LOADED = 80
# Loading what was found may take so long, even past the deadline: without it the search was for nothing.
LOAD_SECONDS = 0.05

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """One checked request, as both `recall` and `search` need it."""

    user_id: str
    session_id: str | None
    query: str
    since: datetime | None
    until: datetime | None
    k: int | None
    arms: Collection[str]
    now: datetime


@dataclass(frozen=True, kw_only=True)
class _Memory:
    """What of a user's memory one request may search."""

    user: User
    scope: Scope
    index: SearchIndex
    speakers: Sequence[str]
    hide: Callable[[Connection], list[int]]  # chunk_nos of the active context as it is now


def _hide_nothing(_conn: Connection) -> list[int]:
    return []


class _Clock:
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


class Recaller:
    """Answers `recall` and `search`. Safe to share between threads."""

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

    def recall(
        self,
        *,
        user_id: str,
        session_id: str,
        query: str,
        current_tokens: int,
        context_window_capacity: int,
        active_message_ids: Sequence[str] | None = None,
        active_from_seq: int | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        k: int | None = None,
        style: Style = "list",
        block_tokens: int | None = None,
        arms: Collection[str] = ARMS,
        now: datetime | None = None,
    ) -> Recall:
        """The MOIM block for one turn, sized by the fill ratio `current_tokens / context_window_capacity`.

        Messages of this session that the model can still see are named by `active_message_ids` or begin at
        `active_from_seq`; they are left out, all others are searched. `since` (inclusive) and `until`
        (exclusive) filter by the messages' time. `k` limits the number of items, `block_tokens` the whole
        block below its tier's limit. `arms` leaves out one half of the search (evaluation), `now` is the time
        that "yesterday" refers to.

        Past the deadline (setting `recall_deadline_ms`) it answers with what it has and says so in `degraded`.
        Raises InvalidInput, Forbidden (session of another user), TransientError (database unreachable).
        """
        session_id = text.clean_id(session_id, field="session_id")
        limits = budget.tier(current_tokens, context_window_capacity, self._settings)
        if block_tokens is not None:
            most = _whole("block_tokens", block_tokens, 1, 1_000_000)
            limits = replace(limits, episodes=min(limits.episodes, most), block=min(limits.block, most))
        if style not in get_args(Style):
            raise InvalidInput("style", f"must be one of {', '.join(get_args(Style))}")
        if active_message_ids is not None and active_from_seq is not None:
            raise InvalidInput("active_from_seq", "give either active_message_ids or active_from_seq, not both")
        if active_message_ids is not None:
            active_message_ids = _id_list(active_message_ids)
        if active_from_seq is not None:
            _whole("active_from_seq", active_from_seq, 0, 2**62)
        asked = _check(
            user_id=user_id, session_id=session_id, query=query, since=since, until=until, k=k, arms=arms, now=now
        )
        clock = _Clock(self._settings.recall_deadline_ms)

        def open_memory(conn: Connection) -> tuple[User | None, _Memory | None, list[Fact]]:
            search.bound_reads(conn, int(clock.left() * 1_000))
            index = indexes.active_index(conn)
            user = users.get_user(conn, asked.user_id)
            session_no = users.own_session(conn, -1 if user is None else user.user_no, session_id)
            if user is None or not user.memory_on:
                return user, None, []
            remembered = [] if session_no is None else facts.session_facts(conn, user.user_no, session_no)
            if not search.has_memory(conn, user.user_no):
                return user, None, []
            user_no = user.user_no

            def hide(conn: Connection) -> list[int]:
                if active_from_seq is None and not active_message_ids:
                    return []
                active = users.own_session(conn, user_no, session_id)
                if active is None:
                    return []
                if active_from_seq is not None:
                    return search.hidden_from_seq(conn, user_no, active, active_from_seq)
                return search.hidden_by_id(conn, user_no, active, active_message_ids or ())

            scope = Scope(
                user_no=user_no, index_no=index.index_no, hidden=hide(conn), since=asked.since, until=asked.until
            )
            return user, _open(conn, user, scope, index, hide), remembered

        user, memory, remembered = clock.stage("context", lambda: self._read(clock, open_memory))
        if user is not None and not user.memory_on:
            limits = replace(limits, tier=Tier.OFF, episodes=0, block=0)
            return _answer(limits, "", 0, current_tokens, context_window_capacity, [], [], clock)

        zone = ZoneInfo("UTC" if user is None else user.time_zone)
        ranked: list[Item] = []
        if memory is not None and limits.episodes > 0 and asked.query.strip():
            ranked = self._search(asked, memory, clock)

        def build() -> tuple[Block, list[Item]]:
            return ranking.fit(
                ranked,
                k=asked.k,
                facts=remembered,
                zone=zone,
                limits=limits,
                style=style,
                new_user=memory is None,
            )

        rendered, chosen = clock.stage("pack", build)
        return _answer(
            limits, rendered.text, rendered.tokens, current_tokens, context_window_capacity, chosen, remembered, clock
        )

    def search(
        self,
        *,
        user_id: str,
        query: str,
        k: int = 10,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        session_id: str | None = None,
        arms: Collection[str] = ARMS,
        now: datetime | None = None,
    ) -> list[Item]:
        """The `k` best items, ranked, without a budget; inside one session when `session_id` is given.

        An unknown user and one whose memory is off have none. Errors as in `recall`.
        """
        asked = _check(
            user_id=user_id, session_id=session_id, query=query, since=since, until=until, k=k, arms=arms, now=now
        )
        clock = _Clock(self._settings.recall_deadline_ms)

        def open_memory(conn: Connection) -> _Memory | None:
            search.bound_reads(conn, int(clock.left() * 1_000))
            index = indexes.active_index(conn)
            user = users.get_user(conn, asked.user_id)
            if user is None or not user.memory_on:
                return None
            session_no = None
            if asked.session_id is not None:
                session_no = users.own_session(conn, user.user_no, asked.session_id)
                if session_no is None:
                    return None
            scope = Scope(
                user_no=user.user_no,
                index_no=index.index_no,
                session_no=session_no,
                since=asked.since,
                until=asked.until,
            )
            return _open(conn, user, scope, index)

        memory = self._read(clock, open_memory)
        return [] if memory is None or not asked.query.strip() else self._search(asked, memory, clock)[:k]

    def _search(self, asked: _Asked, memory: _Memory, clock: _Clock) -> list[Item]:
        """Both arms side by side, fused and ranked, best first."""
        view = timephrases.read(asked.query, now=asked.now, zone=ZoneInfo(memory.user.time_zone))
        scope = memory.scope
        scope = replace(scope, since=_later(scope.since, view.since), until=_earlier(scope.until, view.until))
        query = view.rest if view.rest.strip() else asked.query
        named = words.named(query, memory.speakers)
        tokens = words.query_words(query, speakers=named)
        dense = words_found = None
        if "dense" in asked.arms and memory.index.dimension is not None:
            dense = self._threads.submit(self._dense, query, scope, memory.index, clock)
        if "words" in asked.arms and tokens:
            words_found = self._threads.submit(self._words, tokens, memory.user, scope, clock)
        dense_hits: DenseHits | None = self._wait(dense, "dense", clock)
        word_hits: WordHits | None = self._wait(words_found, "words", clock)
        if "dense" in asked.arms and memory.index.dimension is None:
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
        numbers = sorted({hit.chunk_no for hit in meant.hits} | {hit.chunk_no for hit in said.hits})

        def load(conn: Connection) -> list[Item]:
            search.bound_reads(conn, int(max(clock.left(), LOAD_SECONDS) * 1_000))
            # The host may be recording the very turn that asks, and a worker may be cutting the active ones anew.
            hidden = set(memory.hide(conn))
            visible = replace(scope, hidden=sorted(hidden))
            places = search.places(conn, visible, [no for no in numbers if no not in hidden])
            found = ranking.fuse(
                meant.hits,
                said.hits,
                places,
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

        if not numbers:
            return []
        try:
            return clock.stage("load", lambda: self._read(clock, load, least=LOAD_SECONDS))
        except TransientError as exc:
            clock.skipped.append(f"load: {exc}")
            return []

    def _dense(self, query: str, scope: Scope, index: SearchIndex, clock: _Clock) -> DenseHits:
        embedder = clock.stage("model", lambda: self._models.for_index(index, wait_seconds=clock.left()))
        vector = clock.stage("embed", lambda: embedder.embed_query(query))

        limit = self._settings.candidates

        def scan(conn: Connection) -> list[DenseHit]:
            search.bound_reads(conn, int(clock.left() * 1_000))
            held = None if self._cache is None else self._cache.dense(conn, scope, vector, limit)
            return search.dense(conn, scope, vector, limit) if held is None else held

        hits = clock.stage("dense", lambda: self._read(clock, scan))
        return DenseHits(hits=hits, complete=len(hits) < limit, understood=understands(embedder, query))

    def _words(self, asked: Sequence[words.QueryWord], user: User, scope: Scope, clock: _Clock) -> WordHits:
        tokens = words.query_tokens(user.key, asked)

        def match(conn: Connection) -> WordHits:
            search.bound_reads(conn, int(clock.left() * 1_000))
            return search.words(conn, scope, tokens, self._settings.candidates)

        return clock.stage("words", lambda: self._read(clock, match))

    def _wait(self, arm: Future[T] | None, name: str, clock: _Clock) -> T | None:
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

    def _read(self, clock: _Clock, call: Callable[[Connection], T], *, least: float = 0.001) -> T:
        """One read transaction; it waits for a connection until the deadline, and at least that many seconds."""
        with self._database.connection(max(clock.left(), least)) as conn:
            return call(conn)


def _answer(
    limits: Budget,
    text_: str,
    tokens: int,
    current_tokens: int,
    capacity: int,
    chosen: Sequence[Item],
    remembered: Sequence[Fact],
    clock: _Clock,
) -> Recall:
    return Recall(
        block=text_,
        tokens=tokens,
        tier=limits.tier,
        fill_ratio=budget.fill_ratio(current_tokens, capacity),
        items=chosen,
        facts=remembered,
        degraded=clock.degraded,
        timings_ms=clock.finish(),
    )


def _open(
    conn: Connection,
    user: User,
    scope: Scope,
    index: SearchIndex,
    hide: Callable[[Connection], list[int]] = _hide_nothing,
) -> _Memory:
    return _Memory(user=user, scope=scope, index=index, speakers=search.speakers(conn, user.user_no), hide=hide)


def _check(
    *,
    user_id: str,
    session_id: str | None,
    query: str,
    since: datetime | str | None,
    until: datetime | str | None,
    k: int | None,
    arms: Collection[str],
    now: datetime | None,
) -> _Asked:
    if not isinstance(query, str):
        raise InvalidInput("query", "must be text")
    first = None if since is None else text.parse_time(since, field="since")
    last = None if until is None else text.parse_time(until, field="until")
    if first is not None and last is not None and first >= last:
        raise InvalidInput("until", "must be later than since")
    if not arms or not set(arms) <= set(ARMS):
        raise InvalidInput("arms", f"must be one or more of {', '.join(ARMS)}")
    return _Asked(
        user_id=text.clean_id(user_id, field="user_id"),
        session_id=None if session_id is None else text.clean_id(session_id, field="session_id"),
        query=text.clean(query, field="query", limit_bytes=QUERY_BYTES),
        since=first,
        until=last,
        k=None if k is None else _whole("k", k, 1, MAX_K),
        arms=arms,
        now=datetime.now(UTC) if now is None else text.parse_time(now, field="now"),
    )


def _whole(field: str, value: int, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidInput(field, f"must be a whole number from {least} to {most}")
    return value


def _id_list(ids: Sequence[str]) -> list[str]:
    if isinstance(ids, str) or not isinstance(ids, Sequence):
        raise InvalidInput("active_message_ids", "must be a list of message ids")
    return [text.clean_id(one, field="active_message_ids") for one in ids]


def _later(a: datetime | None, b: datetime | None) -> datetime | None:
    return max(a, b) if a is not None and b is not None else a or b


def _earlier(a: datetime | None, b: datetime | None) -> datetime | None:
    return min(a, b) if a is not None and b is not None else a or b
