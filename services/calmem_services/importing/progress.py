"""What a running import shows: how far it is, how fast, how long it will take, and which lines are bad."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TextIO

from calmem.errors import InvalidInput
from calmem_services.importing.reading import Source
from calmem_services.importing.running import Report

# Bad lines shown; the others are counted.
SHOWN = 20
_TTY_SECONDS, _LOG_SECONDS = 0.2, 5.0


class Progress:
    """On a terminal one line in place, elsewhere a line every few seconds."""

    def __init__(self, out: TextIO, source: Source) -> None:
        self._out = out
        self._source = source
        self._tty = out.isatty()
        self._began_at = self._shown_at = time.monotonic()
        self._began_bytes = source.done_bytes
        self._width = 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began_at

    def show(self, report: Report) -> None:
        if time.monotonic() - self._shown_at < (_TTY_SECONDS if self._tty else _LOG_SECONDS):
            return
        self._shown_at = time.monotonic()
        line = self.line(report)
        if self._tty:
            self._out.write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            self._out.write(line + "\n")
        self._out.flush()

    def line(self, report: Report) -> str:
        """For example `12.3 of 98.0 MB (13 %), 5,120 messages, 3 bad, 1,280 a second, 0:01:07 left`."""
        done, total, seconds = self._source.done_bytes, self._source.total_bytes, self.seconds
        parts = [f"{done / 1e6:.1f} MB"]
        if total:
            parts = [f"{done / 1e6:.1f} of {total / 1e6:.1f} MB ({min(100, 100 * done // total)} %)"]
        parts.append(f"{report.messages:,} messages")
        if report.bad:
            parts.append(f"{report.bad:,} bad")
        if seconds > 0:
            parts.append(f"{report.messages / seconds:,.0f} a second")
        read = done - self._began_bytes
        if total and read > 0:
            left = timedelta(seconds=int(seconds * max(0, total - done) / read))
            parts.append(f"{left} left")
        return ", ".join(parts)

    def say(self, text: str) -> None:
        """A line of its own, not over the one in place."""
        if self._width:
            self._out.write("\r" + " " * self._width + "\r")
            self._width = 0
        self._out.write(text + "\n")
        self._out.flush()

    def end(self) -> None:
        if self._width:
            self._out.write("\n")
            self._width = 0


class BadLines:
    """Says the first bad lines, and writes all of them to a file, one JSON object a line."""

    def __init__(self, say: Callable[[str], None], path: Path | None, *, append: bool) -> None:
        """Raises InvalidInput for a file that cannot be written."""
        self._say = say
        try:
            # By lines, so that what is before a checkpoint is in the file.
            self._file = None if path is None else path.open("a" if append else "w", encoding="utf-8", buffering=1)
        except OSError as exc:
            raise InvalidInput("--errors", f"cannot be written: {exc.strerror}") from exc
        self._count = 0

    def note(self, where: str, reason: str) -> None:
        self._count += 1
        if self._file is not None:
            self._file.write(json.dumps({"where": where, "reason": reason}) + "\n")
        if self._count <= SHOWN:
            self._say(f"{where}: {reason}")
        elif self._count == SHOWN + 1:
            self._say("more bad lines are only counted" + ("" if self._file else "; --errors FILE writes all of them"))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
