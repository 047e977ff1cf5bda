"""Use case: recall. Reads Postgres and the model, never the queue; answers within its deadline."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import structlog

from calmem import budget, packing, text
from calmem.errors import InvalidInput
from calmem.model import STYLES, Budget, Fact, Item, Recall, SearchIndex, StoredUser, Style, Tier
from calmem.models import Models
from calmem.searching import ARMS, CONTEXT_SECONDS, Begun, Clock, Memory, Searcher, Trace, hide_nothing
from calmem.settings import Settings
from calmem.storage import opening, search
from calmem.storage.pool import Connection, Database
from calmem.storage.search import Scope

log = structlog.get_logger(__name__)

MAX_K = 1_000
QUERY_BYTES = 65_536


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


class Recaller:
    """Answers `recall` and `search`. Safe to share between threads."""

    def __init__(self, database: Database, settings: Settings, models: Models) -> None:
        self._settings = settings
        self._models = models
        self._searcher = Searcher(database, settings, models)

    def close(self) -> None:
        self._searcher.close()

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
        trace: Trace | None = None,
        began: float | None = None,
    ) -> Recall:
        """The MOIM block for one turn, sized by the fill ratio `current_tokens / context_window_capacity`.

        Messages of this session that the model can still see are named by `active_message_ids` or begin at
        `active_from_seq`; they are left out, all others are searched. `since` (inclusive) and `until`
        (exclusive) filter by the messages' time. `k` limits the number of items, `block_tokens` the whole
        block below its tier's limit. `arms` leaves out one half of the search (evaluation), `now` is the time
        that "yesterday" refers to. `trace` is filled with what was considered (see `calmem.explaining`). The
        deadline counts from `began`, by time.perf_counter(), where the request had to wait before this call.

        Past the deadline (setting `recall_deadline_ms`) it answers with what it has and says so in `degraded`.
        Raises InvalidInput, Forbidden (session of another user), TransientError (database unreachable).
        """
        session_id = text.clean_id(session_id, field="session_id")
        limits = budget.tier(current_tokens, context_window_capacity, self._settings)
        if block_tokens is not None:
            most = _whole("block_tokens", block_tokens, 1, 1_000_000)
            limits = replace(limits, episodes=min(limits.episodes, most), block=min(limits.block, most))
        if style not in STYLES:
            raise InvalidInput("style", f"must be one of {', '.join(STYLES)}")
        if active_message_ids is not None and active_from_seq is not None:
            raise InvalidInput("active_from_seq", "give either active_message_ids or active_from_seq, not both")
        if active_message_ids is not None:
            active_message_ids = _id_list(active_message_ids)
        if active_from_seq is not None:
            _whole("active_from_seq", active_from_seq, 0, 2**62)
        asked = _check(
            user_id=user_id, session_id=session_id, query=query, since=since, until=until, k=k, arms=arms, now=now
        )
        clock = Clock(self._settings.recall_deadline_ms, began=began)
        begun = None
        if limits.episodes > 0:
            begun = self._searcher.begin(asked.query, clock, arms=asked.arms, now=asked.now)

        def open_memory(conn: Connection) -> tuple[StoredUser | None, Memory | None, Sequence[Fact]]:
            asker = opening.read_asker(conn, asked.user_id, session_id)
            index, user = self._index(asker.indexes), asker.user
            if user is None or not user.memory_on:
                return user, None, []
            user_no = user.user_no
            contents = opening.read_contents(conn, user_no, asker.session_no)
            if not contents.remembers:
                return user, None, []

            def hide(conn: Connection) -> list[int]:
                if active_from_seq is None and not active_message_ids:
                    return []
                if active_from_seq is not None:
                    return search.hidden_from_seq(conn, user_no, index.index_no, session_id, active_from_seq)
                return search.hidden_by_id(conn, user_no, index.index_no, session_id, active_message_ids or ())

            scope = Scope(
                user_no=user_no, index_no=index.index_no, hidden=hide(conn), since=asked.since, until=asked.until
            )
            memory = Memory(user=user, scope=scope, index=index, speakers=contents.speakers, hide=hide)
            return user, memory, contents.facts

        user, memory, remembered = clock.stage(
            "context", lambda: self._searcher.read(clock, open_memory, least=CONTEXT_SECONDS)
        )
        if user is not None and not user.memory_on:
            limits = replace(limits, tier=Tier.OFF, episodes=0, block=0)
            return _answer(limits, "", 0, current_tokens, context_window_capacity, [], [], clock)

        zone = ZoneInfo("UTC" if user is None else user.time_zone)
        ranked: list[Item] = []
        if memory is not None and limits.episodes > 0:
            ranked = self._find(asked, memory, clock, begun, trace)

        def pack(limits: Budget) -> packing.Packed:
            return packing.fit(
                ranked,
                k=asked.k,
                facts=remembered,
                zone=zone,
                limits=limits,
                style=style,
                new_user=memory is None,
            )

        packed = clock.stage("pack", lambda: pack(limits))
        if trace is not None:
            trace.memory, trace.ranked, trace.pack = memory, ranked, pack
        block = packed.block
        if self._settings.log_text:
            log.info("recall_text", user_id=asked.user_id, session_id=session_id, query=asked.query, block=block.text)
        return _answer(
            limits, block.text, block.tokens, current_tokens, context_window_capacity, packed.items, remembered, clock
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
        began: float | None = None,
    ) -> list[Item]:
        """The `k` best items, ranked, without a budget; inside one session when `session_id` is given.

        An unknown user and one whose memory is off have none. Errors as in `recall`.
        """
        asked = _check(
            user_id=user_id, session_id=session_id, query=query, since=since, until=until, k=k, arms=arms, now=now
        )
        clock = Clock(self._settings.recall_deadline_ms, began=began)
        begun = self._searcher.begin(asked.query, clock, arms=asked.arms, now=asked.now)

        def open_memory(conn: Connection) -> Memory | None:
            asker = opening.read_asker(conn, asked.user_id, asked.session_id)
            index, user = self._index(asker.indexes), asker.user
            if user is None or not user.memory_on or (asked.session_id is not None and asker.session_no is None):
                return None
            contents = opening.read_contents(conn, user.user_no, None)
            scope = Scope(
                user_no=user.user_no,
                index_no=index.index_no,
                session_no=asker.session_no,
                since=asked.since,
                until=asked.until,
            )
            return Memory(user=user, scope=scope, index=index, speakers=contents.speakers, hide=hide_nothing)

        memory = self._searcher.read(clock, open_memory, least=CONTEXT_SECONDS)
        return [] if memory is None else _rounded(self._find(asked, memory, clock, begun)[:k])

    def _index(self, in_use: Sequence[SearchIndex]) -> SearchIndex:
        """The active one; the model of one beside it is being loaded, for the moment when recall goes over to it."""
        active, *beside = in_use
        for index in beside:
            self._models.prepare(index)
        return active

    def _find(
        self, asked: _Asked, memory: Memory, clock: Clock, begun: Begun | None, trace: Trace | None = None
    ) -> list[Item]:
        if not asked.query.strip():
            return []
        return self._searcher.find(asked.query, memory, clock, arms=asked.arms, now=asked.now, begun=begun, trace=trace)


def _answer(
    limits: Budget,
    text_: str,
    tokens: int,
    current_tokens: int,
    capacity: int,
    chosen: Sequence[Item],
    remembered: Sequence[Fact],
    clock: Clock,
) -> Recall:
    return Recall(
        block=text_,
        tokens=tokens,
        tier=limits.tier,
        fill_ratio=budget.fill_ratio(current_tokens, capacity),
        items=_rounded(chosen),
        facts=remembered,
        degraded=clock.degraded,
        timings_ms=clock.finish(),
    )


def _rounded(items: Sequence[Item]) -> list[Item]:
    """As they are shown, by whatever way they go out: further decimals say nothing."""
    return [
        replace(
            item,
            score=round(item.score, 6),
            scores={name: round(score, 6) for name, score in item.scores.items()},
        )
        for item in items
    ]


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
    if not isinstance(arms, Collection) or not arms or not all(arm in ARMS for arm in arms) or isinstance(arms, str):
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
