"""Reading a history file line by line into batches, in bounded memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from calmem.errors import Conflict, Forbidden, InvalidInput, TransientError
from calmem.model import Recorded

BATCH = 500
# A batch also ends here, whatever its number of messages.
BATCH_BYTES = 8_388_608
# A line cannot be longer than a message's text in JSON escapes, with room for the rest.
LINE_BYTES = 8_388_608


@dataclass
class Report:
    """Progress of an import."""

    lines: int = 0
    recorded: int = 0
    known: int = 0
    not_stored: int = 0
    bad: int = 0

    @property
    def counts(self) -> dict[str, int]:
        return {
            "lines": self.lines,
            "recorded": self.recorded,
            "already there": self.known,
            "not stored (memory off)": self.not_stored,
            "bad": self.bad,
        }

    @property
    def line(self) -> str:
        return f"{self.lines} lines, {self.recorded} recorded, {self.known} already there, {self.bad} bad"


def read_lines(file: BinaryIO) -> Iterator[bytes]:
    """The file's lines; of one longer than `LINE_BYTES` only so much that it can be told, the rest is skipped."""
    while line := file.readline(LINE_BYTES + 1):
        rest = line
        while len(rest) > LINE_BYTES and not rest.endswith(b"\n"):
            rest = file.readline(LINE_BYTES + 1)
        yield line


def import_lines(
    lines: Iterable[bytes],
    record_many: Callable[[Sequence[Mapping[str, Any]]], list[Recorded]],
    *,
    strict: bool,
    on_bad: Callable[[int, str], None],
    on_progress: Callable[[Report], None],
) -> Report:
    """Record every line; a bad one is reported by its number and skipped, or ends the import when `strict`.

    A line without `message_id` gets one made of its number and content, so that running twice doubles nothing.
    Raises InvalidInput naming the line (`strict`), TransientError naming the last line that is safe.
    """
    report = Report()
    safe = size = 0
    batch: list[tuple[int, dict[str, Any]]] = []

    def bad(number: int, reason: str) -> None:
        report.bad += 1
        if strict:
            raise InvalidInput(f"line {number}", reason)
        on_bad(number, reason)

    def count(answers: Iterable[Recorded]) -> None:
        for answer in answers:
            report.recorded += answer.created
            report.known += answer.stored and not answer.created
            report.not_stored += not answer.stored

    def flush() -> None:
        nonlocal safe, size
        if not batch:
            return
        last = batch[-1][0]
        try:
            count(record_many([fields for _, fields in batch]))
        except (InvalidInput, Conflict, Forbidden):
            # One line spoils the batch: find it by recording one by one.
            for number, fields in batch:
                try:
                    count(record_many([fields]))
                except (InvalidInput, Conflict, Forbidden) as exc:
                    bad(number, str(exc).removeprefix("messages[0]."))
        except TransientError as exc:
            raise TransientError(f"stopped after line {safe}: {exc}; run the same command again to go on") from exc
        batch.clear()
        safe, size = last, 0
        on_progress(report)

    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        report.lines += 1
        fields = _parse(line)
        if isinstance(fields, str):
            bad(number, fields)
            continue
        if fields.get("message_id") is None:
            fields["message_id"] = f"import-{number}-{hashlib.sha256(line.strip()).hexdigest()[:24]}"
        batch.append((number, fields))
        size += len(line)
        if len(batch) >= BATCH or size >= BATCH_BYTES:
            flush()
    flush()
    return report


def _parse(line: bytes) -> dict[str, Any] | str:
    """The line's object, or what is wrong with it."""
    if len(line) > LINE_BYTES:
        return f"has more than {LINE_BYTES} bytes"
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return "is not JSON"
    return fields if isinstance(fields, dict) else "is not a JSON object"
