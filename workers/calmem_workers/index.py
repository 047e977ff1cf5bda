"""Indexing: claim, chunk, embed, write. The database is the truth, a job only says "look now"."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar
from uuid import UUID, uuid4

import structlog

from calmem import metrics
from calmem.chunking import chunk
from calmem.embedding import Embedder, embedding_text, probe
from calmem.errors import CalmemError, ModelUnavailable, TransientError
from calmem.model import Claim, IndexState, Lane, NewChunk, SearchIndex, Unindexed
from calmem.models import Models, same_model
from calmem.queueing import WakeUps
from calmem.settings import Settings
from calmem.storage import indexes, reindexes, tasks
from calmem.storage.pool import Connection, Database
from calmem.text import own_text
from calmem.words import index_words, key_tokens
from calmem_workers import reindex

log = structlog.get_logger(__name__)

T = TypeVar("T")

# Contents held at once: that many bytes, or one message.
GROUP_BYTES = 262_144
# Characters embedded between two looks at the lease: a second or two on one core.
SLICE_CHARS = 32_768
# A worker that cannot reach the database tries again after this, doubled up to the second number.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_ERROR_CHARS = 500

_current: ContextVar[Drainer] = ContextVar("calmem_drainer")


def drain(lane: str) -> int:
    """The RQ job: index until nothing is left. Returns the number of messages written."""
    return _current.get().run(woken_by=Lane(lane))


class Drainer:
    """Indexes what is pending, one batch at a time. One per process; its threads take turns."""

    def __init__(self, database: Database, settings: Settings, models: Models, wake_ups: WakeUps) -> None:
        self._database = database
        self._settings = settings
        self._models = models
        self._wake_ups = wake_ups
        self._turn = threading.Lock()
        self._next_user = 0
        self._suspects_next = True
        self._problems: dict[int, str | None] = {}  # by index_no; noted in the database when they change
        self.stop = threading.Event()

    def serve_jobs(self) -> None:
        """Make this drainer the one that RQ jobs of this thread run."""
        _current.set(self)

    def load_model(self) -> None:
        """Load the active index's model and remember what it computes. Raises ModelUnavailable, PermanentError."""
        self._embedder(self._persist(indexes.active_index))

    def run(self, *, woken_by: Lane | None = None) -> int:
        """`drain` for a process that lives on: whatever goes wrong is logged, and the next call looks again."""
        try:
            return self.drain(woken_by=woken_by)
        except CalmemError as exc:
            if not self.stop.is_set():
                log.error("drain_failed", error=str(exc))
        except Exception as exc:
            # Never its text or traceback: the database's errors quote rows, and rows are what people said.
            log.error("drain_failed", error=type(exc).__name__)
        return 0

    def drain(self, *, woken_by: Lane | None = None) -> int:
        """Index until nothing is pending or `stop` is set. Returns the number of messages written."""
        with self._turn:
            if woken_by is not None:
                self._wake_ups.clear(woken_by)
            written = 0
            while not self.stop.is_set():
                claimed, done = self._batch()
                written += done
                if not claimed and not self._persist(reindex.step):
                    break
            return written

    def _batch(self) -> tuple[int, int]:
        """(messages claimed, messages written) of one batch: of the active index if anything waits there."""
        in_use = self._persist(indexes.in_use)
        for index in in_use:
            if index.state is IndexState.PAUSED:
                continue
            # Before the claim: a worker without the index's model must not use up attempts.
            embedder = self._embedder(index) if index is in_use[0] else self._embedder_beside(index)
            if embedder is None:
                continue
            token = uuid4()
            lane, claims = self._persist(partial(self._claim, index=index, token=token))
            if claims:
                like = next((other for other in in_use if other is not index and same_model(index, other)), None)
                return len(claims), self._index_batch(
                    _Batch(index=index, embedder=embedder, like=like), lane, claims, token
                )
        return 0, 0

    def _index_batch(self, batch: _Batch, lane: Lane, claims: Sequence[Claim], token: UUID) -> int:
        if len(claims) >= self._most(batch.index):
            # There is more: let other workers join.
            self._wake_ups.push(lane if batch.index.state is IndexState.ACTIVE else Lane.REINDEX)
        lease = _Lease(self, token)
        written = 0
        for group in _groups(claims):
            if self.stop.is_set():
                given_back = self._persist(lambda conn: tasks.give_back(conn, token=token))
                log.info("messages_given_back", count=given_back)
                break
            written += self._index_group(group, batch, lease)
        metrics.INDEXED.inc(written)
        log.info(
            "messages_indexed",
            count=written,
            claimed=len(claims),
            lane=lane.value,
            index_no=batch.index.index_no,
        )
        return written

    def _most(self, index: SearchIndex) -> int:
        """Messages of one claim; a small one where live messages would have to wait for it."""
        most = self._settings.claim_messages
        return most if index.state is IndexState.ACTIVE else max(1, most // 4)

    def _claim(self, conn: Connection, *, index: SearchIndex, token: UUID) -> tuple[Lane, list[Claim]]:
        """Live before backfill before reindex; every other time first one message that was attempted before."""
        self._suspects_next = not self._suspects_next
        order = ("suspect", "fresh") if self._suspects_next else ("fresh", "suspect")
        for lane in Lane:
            for kind in order:
                claims = self._claim_one(conn, kind, lane, index, token)
                if claims:
                    return lane, claims
        return Lane.LIVE, []

    def _claim_one(self, conn: Connection, kind: str, lane: Lane, index: SearchIndex, token: UUID) -> list[Claim]:
        settings = self._settings
        if kind == "suspect":
            return tasks.claim_suspect(
                conn,
                lane=lane,
                index_no=index.index_no,
                lease_seconds=settings.lease_seconds,
                token=token,
                max_attempts=settings.max_attempts,
            )
        claims: list[Claim] = []
        # From where the last batch ended, then from the beginning.
        for from_user in dict.fromkeys((self._next_user, 0)):
            claims = tasks.claim_fresh(
                conn,
                lane=lane,
                index_no=index.index_no,
                limit=self._most(index),
                lease_seconds=settings.lease_seconds,
                token=token,
                from_user=from_user,
            )
            if claims:
                break
        self._next_user = 1 + max((claim.user_no for claim in claims), default=-1)
        return claims

    def _index_group(self, group: Sequence[Claim], batch: _Batch, lease: _Lease) -> int:
        """Messages written. One that cannot be indexed fails alone; its neighbours are done one by one."""
        try:
            return self._index_together(group, batch, lease)
        except TransientError:
            raise
        # Tokenizer, runtime and database each refuse a bad message in their own way; it must not take others along.
        except Exception as exc:
            if len(group) > 1:
                return sum(self._index_group([claim], batch, lease) for claim in group)
            self._fail(group[0], exc, lease.token)
            return 0

    def _index_together(self, group: Sequence[Claim], batch: _Batch, lease: _Lease) -> int:
        index_no = batch.index.index_no
        loaded = self._persist(lambda conn: tasks.load_unindexed(conn, group, index_no=index_no, like=batch.like))
        alive = [(claim, loaded[claim.message_no]) for claim in group if claim.message_no in loaded]
        cut = [
            (claim, message.content, _cut(claim, message, batch.index, batch.embedder, lease))
            for claim, message in alive
        ]
        results = _embed(cut, batch.embedder, lease)
        return self._persist(lambda conn: tasks.finish(conn, token=lease.token, index_no=index_no, results=results))

    def _fail(self, claim: Claim, exc: Exception, token: UUID) -> None:
        error = f"{type(exc).__name__}: {exc}"[:_ERROR_CHARS]
        most = self._settings.max_attempts
        aside = self._persist(lambda conn: tasks.fail(conn, token=token, claim=claim, error=error, max_attempts=most))
        metrics.INDEX_FAILURES.inc()
        log.warning(
            "message_not_indexed",
            message_no=claim.message_no,
            attempt=claim.attempts,
            set_aside=aside,
            error=type(exc).__name__,
        )

    def _embedder(self, index: SearchIndex) -> Embedder:
        embedder = self._models.for_index(index)
        if index.probe is None:
            vector = probe(embedder)
            self._persist(lambda conn: indexes.settle_probe(conn, index.index_no, vector))
        return embedder

    def _embedder_beside(self, index: SearchIndex) -> Embedder | None:
        """None, and a note for `calmem reindex status`, when this worker has not its model: the active index goes on."""
        embedder, problem = None, None
        try:
            embedder = self._embedder(index)
        except ModelUnavailable as exc:
            problem = f"a worker cannot load the model: {exc}"
        if self._problems.get(index.index_no, "") != problem:
            self._persist(lambda conn: reindexes.note_problem(conn, index.index_no, problem))
            self._problems[index.index_no] = problem
        return embedder

    def renew(self, token: UUID) -> None:
        self._persist(lambda conn: tasks.renew(conn, token=token, lease_seconds=self._settings.lease_seconds))

    @property
    def lease_seconds(self) -> float:
        return self._settings.lease_seconds

    def _persist(self, call: Callable[[Connection], T]) -> T:
        """Run one transaction, waiting for the database as long as it is away.

        What was embedded is kept meanwhile, so an outage costs no message an attempt.
        """
        pause = _FIRST_PAUSE
        while True:
            try:
                with self._database.connection() as conn:
                    return call(conn)
            except TransientError as exc:
                if self.stop.is_set():
                    raise
                log.warning("database_away", retry_seconds=pause, error=str(exc))
                self.stop.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """What one batch is indexed for. `like`: an index of the same model, whose vectors are taken where texts are the same."""

    index: SearchIndex
    embedder: Embedder
    like: SearchIndex | None


class _Lease:
    """Keeps a batch's lease alive while its texts are being embedded."""

    def __init__(self, drainer: Drainer, token: UUID) -> None:
        self.token = token
        self._drainer = drainer
        self._renewed = time.monotonic()

    def keep(self) -> None:
        if time.monotonic() - self._renewed > self._drainer.lease_seconds / 3:
            self._drainer.renew(self.token)
            self._renewed = time.monotonic()


def _groups(claims: Sequence[Claim]) -> Iterator[list[Claim]]:
    group: list[Claim] = []
    size = 0
    for claim in claims:
        if group and size + claim.size > GROUP_BYTES:
            yield group
            group, size = [], 0
        group.append(claim)
        size += claim.size
    if group:
        yield group


def _cut(claim: Claim, message: Unindexed, index: SearchIndex, embedder: Embedder, lease: _Lease) -> list[NewChunk]:
    """The message's chunks within the model's window; those that `record` wrote where they are the same."""
    content = message.content

    def pieces(text: str) -> int:
        lease.keep()  # 1 MiB of punctuation is cut for half a minute
        return embedder.count_pieces(embedding_text(claim.name, text))

    spans = chunk(
        content,
        own_text(content),
        chunk_chars=index.chunk_chars,
        overlap_chars=index.overlap_chars,
        pieces=pieces,
        max_pieces=embedder.max_pieces,
    )
    known = message.known
    if spans == [span for _, span in message.chunks]:
        return [NewChunk(span=span, chunk_no=chunk_no, vector=known.get(span)) for chunk_no, span in message.chunks]
    return [
        NewChunk(
            span=span,
            tokens=key_tokens(claim.user_key, index_words(content[span.start : span.end])),
            vector=known.get(span),
        )
        for span in spans
    ]


def _embed(
    cut: Sequence[tuple[Claim, str, Sequence[NewChunk]]], embedder: Embedder, lease: _Lease
) -> list[tuple[Claim, list[NewChunk]]]:
    """Every chunk of these messages with its vector; short ones beside short ones. What has one keeps it."""
    chunks = {claim.message_no: list(pieces) for claim, _, pieces in cut}
    waiting = [
        (claim.message_no, place, embedding_text(claim.name, content[piece.span.start : piece.span.end]))
        for claim, content, pieces in cut
        for place, piece in enumerate(pieces)
        if piece.vector is None
    ]
    metrics.VECTORS_REUSED.inc(sum(map(len, chunks.values())) - len(waiting))
    waiting.sort(key=lambda w: len(w[2]))
    for part in _slices(waiting):
        vectors = embedder.embed([text for _, _, text in part])
        for (message_no, place, _), vector in zip(part, vectors, strict=True):
            chunks[message_no][place] = replace(chunks[message_no][place], vector=vector)
        lease.keep()
    return [(claim, chunks[claim.message_no]) for claim, _, _ in cut]


def _slices(waiting: Sequence[tuple[int, int, str]]) -> Iterator[list[tuple[int, int, str]]]:
    part: list[tuple[int, int, str]] = []
    chars = 0
    for one in waiting:
        if part and chars + len(one[2]) > SLICE_CHARS:
            yield part
            part, chars = [], 0
        part.append(one)
        chars += len(one[2])
    if part:
        yield part
