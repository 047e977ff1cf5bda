"""Reading a history file line by line into batches, in bounded memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calmem.errors import Conflict, Forbidden, InvalidInput
from calmem.model import Recorded

BATCH = 500
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
    """
    report = Report()
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
        if not batch:
            return
        try:
            count(record_many([fields for _, fields in batch]))
        except (InvalidInput, Conflict, Forbidden):
            # One line spoils the batch: find it by recording one by one.
            for number, fields in batch:
                try:
                    count(record_many([fields]))
                except (InvalidInput, Conflict, Forbidden) as exc:
                    bad(number, str(exc).removeprefix("messages[0]."))
        batch.clear()
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
        if len(batch) >= BATCH:
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
