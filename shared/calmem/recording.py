"""Use case: record. The database first, the wake-up after the commit."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import structlog

from calmem import metrics, text
from calmem.chunking import chunk
from calmem.errors import Conflict, Forbidden, InvalidInput, Overtaken, TransientError
from calmem.model import RECALL_LANES, ROLES, Lane, NewChunk, NewMessage, Recorded, SearchIndex, StoredUser
from calmem.queueing import WakeUps
from calmem.settings import Settings
from calmem.storage import indexes, messages, users
from calmem.storage.pool import Connection, Database
from calmem.words import index_words, key_tokens

log = structlog.get_logger(__name__)

_FIELDS = ("user_id", "session_id", "role", "content", "message_id", "name", "created_at", "metadata")
_REQUIRED = ("user_id", "session_id", "role", "content")
# Two recorders may take the same new message_id at once in different sessions, and a user may be deleted while being
# recorded for; the loser looks again.
_ROUNDS = 3


class _TakenMeanwhile(Exception):
    """Another transaction committed one of our message_ids first; start again and find it."""


class Recorder:
    """Records messages. Safe to share between threads."""

    def __init__(self, database: Database, wake_ups: WakeUps, settings: Settings) -> None:
        self._database = database
        self._wake_ups = wake_ups
        self._settings = settings

    def record(self, *, lane: Lane | str = Lane.LIVE, **fields: Any) -> Recorded:
        """Store one message and wake a worker; idempotent by `message_id`. `lane`: live, or backfill for old history.

        Fields: `user_id`, `session_id`, `role` (user, assistant, tool, system), `content` (text, a list of
        parts or None) and optionally `message_id`, `name`, `created_at` (with offset), `metadata` (JSON object).
        Raises InvalidInput (nothing stored), Conflict (the id exists with other content or for another user),
        Forbidden (the session is another user's), TransientError (database away, full or slower than `record_timeout_seconds`:
        nothing is half stored; say it again with the same `message_id`).
        """
        return self._record([self.check(fields)], _lane(lane))[0]

    def record_many(self, batch: Sequence[Mapping[str, Any]], *, lane: Lane | str = Lane.LIVE) -> list[Recorded]:
        """Store up to `batch_messages` messages in one transaction, all or none; answers in the same order.

        Errors as in `record`; a field is named with its place, as in `messages[3].role`.
        """
        if isinstance(batch, str | bytes | Mapping) or not isinstance(batch, Sequence):
            raise InvalidInput("messages", "must be a list of messages")
        limit = self._settings.batch_messages
        if not 1 <= len(batch) <= limit:
            raise InvalidInput("messages", f"must hold 1 to {limit} messages, not {len(batch)}")
        checked = []
        for place, fields in enumerate(batch):
            if not isinstance(fields, Mapping):
                raise InvalidInput(f"messages[{place}]", "must be an object")
            try:
                checked.append(self.check(fields))
            except InvalidInput as exc:
                raise InvalidInput(f"messages[{place}].{exc.field}", exc.detail) from exc
        return self._record(checked, _lane(lane))

    def check(self, fields: Mapping[str, Any]) -> NewMessage:
        """The sanitised message, or InvalidInput naming the field. Touches nothing."""
        for name in fields:
            if name not in _FIELDS:
                raise InvalidInput(str(name), f"is not a field here; known: {', '.join(_FIELDS)}")
        for name in _REQUIRED:
            if name not in fields:
                raise InvalidInput(name, "is missing")
        role = fields["role"]
        if not isinstance(role, str) or role not in ROLES:
            raise InvalidInput("role", f"must be one of {', '.join(ROLES)}")
        message_id, created_at = fields.get("message_id"), fields.get("created_at")
        return NewMessage(
            user_id=text.clean_id(fields["user_id"], field="user_id"),
            session_id=text.clean_id(fields["session_id"], field="session_id"),
            message_id=str(uuid.uuid4()) if message_id is None else text.clean_id(message_id, field="message_id"),
            role=role,
            content=text.clean(fields["content"], field="content", limit_bytes=self._settings.message_bytes),
            name=text.clean_label(fields.get("name"), field="name"),
            created_at=datetime.now(UTC) if created_at is None else text.parse_time(created_at, field="created_at"),
            metadata=text.clean_metadata(fields.get("metadata")),
        )

    def _record(self, batch: Sequence[NewMessage], lane: Lane) -> list[Recorded]:
        for _ in range(_ROUNDS):
            try:
                with self._database.connection(answer_seconds=self._settings.record_timeout_seconds) as conn:
                    results, pending = _store(conn, batch, lane)
            except (_TakenMeanwhile, Overtaken):
                continue
            metrics.RECORDED.labels(lane.value).inc(sum(result.created for result in results))
            if pending:
                self._wake_ups.push(lane)
            if self._settings.log_text:
                _log(batch, results)
            return results
        raise TransientError("others keep taking the same message_id or deleting the user; try again")


def _log(batch: Sequence[NewMessage], results: Sequence[Recorded]) -> None:
    for message, result in zip(batch, results, strict=True):
        if result.created:
            about = {"user_id": message.user_id, "session_id": message.session_id, "message_id": message.message_id}
            log.info("message_text", **about, role=message.role, text=message.content)


def _lane(lane: Lane | str) -> Lane:
    # Nobody waits for what a reindex has to do: a message in its lane would be missed by whoever looks at the queue.
    if lane not in RECALL_LANES:
        raise InvalidInput("lane", f"must be one of {', '.join(RECALL_LANES)}")
    return Lane(lane)


def _store(conn: Connection, batch: Sequence[NewMessage], lane: Lane) -> tuple[list[Recorded], int]:
    # Sorted, so that two batches that share users and sessions lock them in the same order.
    owners = {user_id: users.ensure_user(conn, user_id) for user_id in sorted({m.user_id for m in batch})}
    wanted = [m for m in batch if owners[m.user_id].memory_on]
    if not wanted:
        return [_not_stored(m) for m in batch], 0
    sessions = _lock_sessions(conn, wanted, owners)
    known = messages.existing(conn, [m.message_id for m in wanted])
    last_seq = dict(sessions.values())
    placed: list[messages.Placed] = []
    results: list[Recorded] = []
    for message in batch:
        user = owners[message.user_id]
        if not user.memory_on:
            results.append(_not_stored(message))
            continue
        twin = known.get(message.message_id)
        if twin is not None:
            _refuse_other_content(message, user.user_no, twin)
            results.append(Recorded(message_id=message.message_id, seq=twin.seq, created=False))
            continue
        place = sessions[message.session_id][0]
        last_seq[place] += 1
        seq = last_seq[place]
        placed.append(messages.Placed(user_no=user.user_no, session_no=place[1], seq=seq, message=message))
        known[message.message_id] = messages.Stored(
            user_no=user.user_no,
            session_id=message.session_id,
            seq=seq,
            role=message.role,
            name=message.name,
            content=message.content,
        )
        results.append(Recorded(message_id=message.message_id, seq=seq, created=True))

    if not placed:
        return results, 0
    nos = messages.insert_messages(conn, placed)
    if len(nos) < len(placed):
        raise _TakenMeanwhile
    messages.advance_sessions(conn, last_seq)
    tasks = 0
    for index in indexes.lock_in_use(conn):
        pending = [
            messages.Pending(
                user_no=p.user_no,
                session_no=p.session_no,
                message_no=nos[p.message.message_id],
                seq=p.seq,
                created_at=p.message.created_at,
                chunks=first_chunks(p.message.content, owners[p.message.user_id].key, index),
            )
            for p in placed
        ]
        tasks += messages.insert_pending(conn, pending, index_no=index.index_no, lane=lane)
    return results, tasks


def _lock_sessions(
    conn: Connection, batch: Sequence[NewMessage], owners: Mapping[str, StoredUser]
) -> dict[str, tuple[tuple[int, int], int]]:
    """((user_no, session_no), last_seq) by session_id, locked until the commit."""
    locked: dict[str, tuple[tuple[int, int], int]] = {}
    asked: dict[str, str] = {}
    for message in sorted(batch, key=lambda m: m.session_id):
        user_no = owners[message.user_id].user_no
        if asked.setdefault(message.session_id, message.user_id) != message.user_id:
            raise Forbidden("session_id: one session cannot belong to two users")
        if message.session_id in locked:
            continue
        session_no, last_seq = users.lock_session(conn, user_no, message.session_id)
        locked[message.session_id] = ((user_no, session_no), last_seq)
    return locked


def _refuse_other_content(message: NewMessage, user_no: int, twin: messages.Stored) -> None:
    mine = (user_no, message.session_id, message.role, message.name, message.content)
    if mine != (twin.user_no, twin.session_id, twin.role, twin.name, twin.content):
        raise Conflict("message_id: this id was recorded with another content, session or user; choose a new id")


def first_chunks(content: str, user_key: bytes, index: SearchIndex) -> list[NewChunk]:
    """What the word search reads until a worker settles the chunks by the model's window."""
    spans = chunk(content, text.own_text(content), chunk_chars=index.chunk_chars, overlap_chars=index.overlap_chars)
    return [
        NewChunk(span=span, tokens=key_tokens(user_key, index_words(content[span.start : span.end]))) for span in spans
    ]


def _not_stored(message: NewMessage) -> Recorded:
    return Recorded(message_id=message.message_id, seq=None, created=False, stored=False)
