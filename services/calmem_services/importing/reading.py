"""A history file as a row of units (lines, elements of a list, objects), in bounded memory.

Only the borders of units are looked for; each unit is then parsed alone, so that one that is bad or too long is one bad
unit, and the file can be resumed between any two. The streaming JSON parsers that exist end the whole file at one bad
byte, change lone surrogates, and hold an element whole however long it is (docs/importing.md).
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from io import BufferedReader

from calmem.errors import InvalidInput

_CHUNK = 262_144
# So much of a file is looked at to tell what it is.
HEAD_BYTES = 65_536
_BOM = b"\xef\xbb\xbf"
_OUTSIDE = re.compile(rb'["\[\]{}]')
_OUTSIDE_OR_COMMA = re.compile(rb'["\[\]{},]')
# The rest of a string as far as the bytes go, never past a backslash without the byte that it escapes.
_IN_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)


class Form(StrEnum):
    """How the units stand in the file."""

    LINES = "lines"  # one a line
    LIST = "list"  # the elements of one JSON list
    OBJECTS = "objects"  # JSON objects one after another, each over as many lines as it likes

    @property
    def noun(self) -> str:
        """What one unit is called."""
        return {Form.LINES: "line", Form.LIST: "element", Form.OBJECTS: "object"}[self]


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One piece of the file, counted from 1; `raw` is empty when `fault` says why it cannot be read."""

    number: int
    raw: bytes
    fault: str | None = None


class Source:
    """An open history file, plain or gzip. `offset` and `digest` are of all that was handed out, unpacked."""

    def __init__(self, file: BufferedReader) -> None:
        """Raises InvalidInput for an encoding that is not UTF-8."""
        self._file = file
        self._packed = file.peek(2)[:2] == b"\x1f\x8b"
        self._stream = gzip.GzipFile(fileobj=file) if self._packed else file
        self._damage = False
        self._hash = hashlib.blake2b(digest_size=32)
        self._last = b""
        self._ahead = b""
        self.offset = 0
        self.number = 0
        self._ahead = head = self._take(HEAD_BYTES)
        if head.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise InvalidInput("FILE", "is UTF-16; save it as UTF-8")
        if head.startswith(_BOM):
            self._consume(self._take(len(_BOM)))
        self.head = self._ahead
        """The first bytes, without a byte order mark; they are handed out as units all the same."""

    @property
    def digest(self) -> bytes:
        """BLAKE2b of everything up to `offset`."""
        return self._hash.copy().digest()

    @property
    def total_bytes(self) -> int | None:
        """The file's size as it lies on the disk; None for a pipe."""
        try:
            status = os.fstat(self._file.fileno())
        except OSError:
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    @property
    def done_bytes(self) -> int:
        """How much of `total_bytes` has been handed out (of a .gz: unpacked)."""
        return self._file.tell() if self._packed and self.total_bytes is not None else self.offset

    def skip_to(self, *, offset: int, number: int, digest: bytes) -> bool:
        """Go on after the unit `number`, which ended at `offset`; False when the bytes before it are others by now.

        After False the source is used up.
        """
        while self.offset < offset and (data := self._take(min(_CHUNK, offset - self.offset))):
            self._consume(data)
        self.number = number
        return self.offset == offset and self.digest == digest

    def units(self, form: Form, *, limit_bytes: int) -> Iterator[Unit]:
        """From where the source stands to its end; a unit of more than `limit_bytes` is never held whole."""
        yield from self._lines(limit_bytes) if form is Form.LINES else self._values(form, limit_bytes)
        if self._damage:
            yield self._unit(b"", "the .gz is damaged or cut off here")

    def _lines(self, limit: int) -> Iterator[Unit]:
        while line := self._line(limit + 1):
            self._consume(line)
            rest = line
            while not rest.endswith(b"\n") and (rest := self._line(limit + 1)):
                self._consume(rest)
            if len(line) > limit:
                yield self._unit(b"", _too_long(limit))
            elif line.strip():
                yield self._unit(line)
            else:
                self.number += 1

    def _values(self, form: Form, limit: int) -> Iterator[Unit]:
        borders = _Borders(form, resumed=self.number > 0, closed=self._last == b"]")
        held: list[bytes] = []
        size = 0
        while data := self._take(_CHUNK):
            start = 0
            for end in borders.find(data):
                self._consume(data[start:end])
                size += end - start
                piece = b"".join([*held, data[start:end]]) if size <= limit else b""
                text = piece.strip() if form is Form.OBJECTS else piece[:-1].strip()
                if size > limit:
                    yield self._unit(b"", _too_long(limit))
                elif text:
                    yield self._unit(text)
                held, size, start = [], 0, end
            self._consume(data[start:])
            size += len(data) - start
            # Blanks between two units count for neither.
            if size <= limit and (held or data[start:].strip()):
                held.append(data[start:])
            else:
                held, size = [], size if size > limit else 0
        if form is Form.LIST and not borders.closed:
            yield self._unit(b"", "the file ends before its list does: it is cut off")
        elif held or size:
            yield self._unit(b"", "the file ends with something that is not complete JSON")

    def _unit(self, raw: bytes, fault: str | None = None) -> Unit:
        self.number += 1
        return Unit(number=self.number, raw=raw, fault=fault)

    def _take(self, most: int) -> bytes:
        if self._ahead:
            taken, self._ahead = self._ahead[:most], self._ahead[most:]
            return taken
        try:
            return self._stream.read(most)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            self._damage = True
            return b""

    def _line(self, most: int) -> bytes:
        if self._ahead:
            end = self._ahead.find(b"\n") + 1 or len(self._ahead)
            line = self._take(min(end, most))
            return line if line.endswith(b"\n") or len(line) == most else line + self._line(most - len(line))
        try:
            return self._stream.readline(most)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            self._damage = True
            return b""

    def _consume(self, data: bytes) -> None:
        if data:
            self._hash.update(data)
            self.offset += len(data)
            self._last = data[-1:]


class _Borders:
    """Finds where units end, over any number of pieces of a file."""

    def __init__(self, form: Form, *, resumed: bool, closed: bool) -> None:
        self._list = form is Form.LIST
        self.closed = self._list and resumed and closed
        """The list has ended: whatever follows belongs to no unit."""
        self._depth = 1 if self._list and resumed else 0
        self._in_string = self._escaped = False

    def find(self, data: bytes) -> Iterator[int]:
        """The places after each border: of a list its bracket and commas, of an object its closing brace."""
        place = 0
        while place < len(data) and not self.closed:
            if self._in_string:
                place = self._string(data, place)
                continue
            marks = _OUTSIDE_OR_COMMA if self._list and self._depth == 1 else _OUTSIDE
            match = marks.search(data, place)
            if match is None:
                return
            mark, place = match.group(), match.end()
            if mark == b'"':
                self._in_string = True
            elif mark == b",":
                yield place
            elif mark in b"[{":
                self._depth += 1
                if self._list and self._depth == 1:
                    yield place
            else:
                self._depth = max(0, self._depth - 1)
                if self._depth == 0:
                    self.closed = self._list
                    yield place

    def _string(self, data: bytes, place: int) -> int:
        if self._escaped:
            self._escaped = False
            return place + 1
        match = _IN_STRING.match(data, place)
        assert match is not None  # it also matches nothing
        end = match.end()
        if end < len(data):
            self._in_string = self._escaped = data[end : end + 1] == b"\\"
        return end + 1


def _too_long(limit: int) -> str:
    return f"has more than {limit} bytes"
