"""Running an import: reading in one thread, recording in several, each session in the order of the file."""

from __future__ import annotations

import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from calmem.errors import Conflict, Forbidden, InvalidInput
from calmem.model import ImportCheckpoint, Recorded
from calmem_services.importing import chatgpt, claude, jsonl, openai
from calmem_services.importing.formats import Adapter, Draft, Format, Options, Parsed, owner, parse
from calmem_services.importing.reading import Form, Source, Unit

ADAPTERS: Mapping[Format, Adapter] = {
    Format.JSONL: jsonl.read,
    Format.CHATGPT: chatgpt.read,
    Format.CLAUDE: claude.read,
    Format.OPENAI: openai.read,
}
# A transaction holds the locks of its sessions: short, so that a live message of one of them does not wait long.
BATCH_MESSAGES = 250
BATCH_BYTES = 4_194_304
# A line cannot be longer than a message's text in JSON escapes, with room for the rest.
LINE_BYTES = 8_388_608
CONVERSATION_BYTES = 33_554_432
CHECKPOINT_MESSAGES = 5_000
# Batches that wait for a thread, so that it never waits for the reading.
_AHEAD = 2

RecordMany = Callable[[Sequence[Mapping[str, Any]]], list[Recorded]]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is read and how: `parallel` threads, at most `rate` messages a second (0: no limit), `strict`: a bad unit ends it."""

    format: Format
    form: Form
    options: Options
    parallel: int = 1
    rate: float = 0.0
    strict: bool = False
    batch_messages: int = BATCH_MESSAGES


class Report:
    """Counts of a running import. Safe to share between threads."""

    def __init__(self, on_bad: Callable[[str, str], None]) -> None:
        """`on_bad` gets where and why, one call at a time."""
        self._lock = threading.Lock()
        self._on_bad = on_bad
        self.units = 0
        self.recorded = self.known = self.not_stored = self.left_out = self.bad = 0

    @property
    def messages(self) -> int:
        """Those that were dealt with, whatever came of them."""
        return self.recorded + self.known + self.not_stored + self.bad

    def count(self, answers: Iterable[Recorded]) -> None:
        with self._lock:
            for answer in answers:
                self.recorded += answer.created
                self.known += answer.stored and not answer.created
                self.not_stored += not answer.stored

    def note_bad(self, where: str, reason: str) -> None:
        with self._lock:
            self.bad += 1
            self._on_bad(where, reason)


@dataclass(frozen=True, kw_only=True)
class _Waiting:
    where: str
    fields: Mapping[str, Any]


class Importer:
    """Records a file through `record_many`.

    `on_progress` is called after every batch, `on_checkpoint` whenever everything up to a place in the file is
    committed, each in the caller's thread.
    """

    def __init__(
        self,
        plan: Plan,
        record_many: RecordMany,
        report: Report,
        *,
        on_progress: Callable[[Report], None],
        on_checkpoint: Callable[[ImportCheckpoint], None],
        bad_before: int = 0,
    ) -> None:
        if plan.format is not Format.JSONL:
            owner(plan.options, plan.format)
        self._plan = plan
        self._record_many = record_many
        self._report = report
        self._on_progress = on_progress
        self._on_checkpoint = on_checkpoint
        self._bad_before = bad_before
        self._adapter = ADAPTERS[plan.format]
        self._since_checkpoint = 0
        self._free_at = 0.0
        # With a slow rate a batch of every second, instead of a long pause after each large one.
        self._most = min(plan.batch_messages, max(1, int(plan.rate))) if plan.rate else plan.batch_messages

    def run(self, source: Source) -> None:
        """Record what is left of the source.

        Raises InvalidInput naming the line (`strict`: nothing after it is recorded, everything before it is), and
        TransientError. What was recorded stays; run again, it goes on.
        """
        plan = self._plan
        limit = LINE_BYTES if plan.format is Format.JSONL else CONVERSATION_BYTES
        with ExitStack() as stop:
            # Strict: one batch at a time, so that none after a bad message is on its way.
            lanes = [
                _Lane(self._store, ahead=1 if plan.strict else _AHEAD, stop=stop)
                for _ in range(1 if plan.strict else plan.parallel)
            ]
            for unit in source.units(plan.form, limit_bytes=limit):
                self._take(unit, lanes)
                if self._since_checkpoint >= CHECKPOINT_MESSAGES:
                    self._settle(lanes)
                    bad = self._bad_before + self._report.bad
                    at = ImportCheckpoint(byte_offset=source.offset, units=unit.number, digest=source.digest, bad=bad)
                    self._since_checkpoint = 0
                    self._on_checkpoint(at)
            self._settle(lanes)

    def _take(self, unit: Unit, lanes: Sequence[_Lane]) -> None:
        self._report.units += 1
        noun = f"{self._plan.form.noun} {unit.number}"
        try:
            parsed = self._adapter(parse(unit), unit, self._plan.options)
        except InvalidInput as exc:
            parsed = Parsed(drafts=[Draft(fault=str(exc) if exc.field else exc.detail)])
        self._report.left_out += parsed.left_out
        size = len(unit.raw) // max(1, len(parsed.drafts))
        for draft in parsed.drafts:
            where = f"{noun}, message {draft.place}" if draft.place else noun
            self._since_checkpoint += 1
            if draft.fields is None:
                self._bad(where, draft.fault, lanes)
                continue
            lane = lanes[_number(draft.fields.get("session_id")) % len(lanes)]
            lane.add(_Waiting(where=where, fields=draft.fields), size)
            if lane.size >= BATCH_BYTES or len(lane.batch) >= self._most:
                self._send(lane)

    def _bad(self, where: str, reason: str, lanes: Sequence[_Lane]) -> None:
        if self._plan.strict:
            self._settle(lanes)
            raise InvalidInput(where, reason)
        self._report.note_bad(where, reason)

    def _settle(self, lanes: Sequence[_Lane]) -> None:
        """Everything that was taken is committed, or counted as bad."""
        for lane in lanes:
            self._send(lane)
        for lane in lanes:
            lane.wait()
        self._on_progress(self._report)

    def _send(self, lane: _Lane) -> None:
        if not lane.batch:
            return
        if self._plan.rate:
            now = time.monotonic()
            time.sleep(max(0.0, self._free_at - now))
            self._free_at = max(self._free_at, now) + len(lane.batch) / self._plan.rate
        lane.send()
        self._on_progress(self._report)

    def _store(self, batch: Sequence[_Waiting]) -> None:
        """Record the batch, in halves where one of its messages is refused: in order, until that one stands alone."""
        try:
            self._report.count(self._record_many([one.fields for one in batch]))
        except (InvalidInput, Conflict, Forbidden) as exc:
            if len(batch) == 1:
                reason = str(exc).removeprefix("messages[0].")
                if self._plan.strict:
                    raise InvalidInput(batch[0].where, reason) from exc
                self._report.note_bad(batch[0].where, reason)
                return
            half = len(batch) // 2
            self._store(batch[:half])
            self._store(batch[half:])


class _Lane:
    """One thread that records its batches one after another; at most `ahead` of them are under way."""

    def __init__(self, store: Callable[[Sequence[_Waiting]], None], *, ahead: int, stop: ExitStack) -> None:
        self._store = store
        self._ahead = ahead
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="calmem-import")
        stop.callback(self._thread.shutdown, cancel_futures=True)
        self._under_way: deque[Future[None]] = deque()
        self.batch: list[_Waiting] = []
        self.size = 0

    def add(self, message: _Waiting, size: int) -> None:
        self.batch.append(message)
        self.size += size

    def send(self) -> None:
        """Hand the batch to the thread, once it has room. Raises what recording an earlier one raised."""
        self._under_way.append(self._thread.submit(self._store, self.batch))
        self.batch, self.size = [], 0
        while len(self._under_way) >= self._ahead:
            self._under_way.popleft().result()

    def wait(self) -> None:
        while self._under_way:
            self._under_way.popleft().result()


def _number(session_id: object) -> int:
    """The same for the same session, in every process."""
    return zlib.crc32(str(session_id).encode("utf-8", "surrogatepass"))
