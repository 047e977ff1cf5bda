"""What formats there are, how one is told from a file's first bytes, and what an adapter makes of a unit."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from calmem.errors import InvalidInput
from calmem.text import ID_CHARS
from calmem_services.importing.reading import Form, Unit


class Format(StrEnum):
    JSONL = "jsonl"
    CHATGPT = "chatgpt"
    CLAUDE = "claude"
    OPENAI = "openai"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the caller says about a file that does not say it itself.

    `user_id`: whose history it is. `session_id`: the session of a single list of messages. `created_at`: the time of
    messages without one. `file_name`: names the session of a single list when nothing else does.
    """

    user_id: str | None = None
    session_id: str | None = None
    created_at: datetime | None = None
    file_name: str = ""


@dataclass(frozen=True, kw_only=True)
class Draft:
    """One message to record, or the reason (`fault`) why it cannot be. `place`: which of its unit's, from 1; 0: the only one."""

    place: int = 0
    fields: Mapping[str, Any] | None = None
    fault: str = ""


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """What a unit holds; `left_out` counts messages that are no part of what was said (hidden, empty, other branches)."""

    drafts: Sequence[Draft]
    left_out: int = 0


# From the parsed JSON object of a unit. Raises InvalidInput for a unit that is none of the format's.
Adapter = Callable[[dict[str, Any], Unit, Options], Parsed]


def tell(head: bytes) -> tuple[Format | None, Form]:
    """The format and form of a file by its first bytes; the format is None when it cannot be told."""
    form = _form(head)
    pieces = head.split(b"\n") if form is Form.LINES else [head]
    for piece in pieces:
        found = _by_keys(_first_keys(piece))
        if found is not None:
            return found, form
    return None, form


def _form(head: bytes) -> Form:
    first_line = head.lstrip().split(b"\n", 1)[0].rstrip()
    if first_line.startswith(b"["):
        return Form.LIST
    # An object that begins in one line and goes on in others.
    return Form.OBJECTS if first_line.startswith(b"{") and first_line[-1:] in b"{[,:" else Form.LINES


_TOKEN = re.compile(rb'"((?:[^"\\]|\\.)*+)"\s*(:?)|[\[\]{}]', re.DOTALL)


def _first_keys(text: bytes) -> set[bytes]:
    """The keys of the first object, as far as the bytes go."""
    depth, keys = 0, set()
    opened = None
    for match in _TOKEN.finditer(text):
        mark = match.group()[:1]
        if mark in b"[{":
            depth += 1
            opened = depth if opened is None and mark == b"{" else opened
        elif mark in b"]}":
            depth -= 1
            if opened is not None and depth < opened:
                break
        elif depth == opened and match.group(2):
            keys.add(match.group(1))
    return keys


def _by_keys(keys: set[bytes]) -> Format | None:
    if b"mapping" in keys:
        return Format.CHATGPT
    if b"chat_messages" in keys:
        return Format.CLAUDE
    if b"user_id" in keys or (b"session_id" in keys and b"role" in keys):
        return Format.JSONL
    if b"messages" in keys or b"role" in keys:
        return Format.OPENAI
    return None


def parse(unit: Unit) -> dict[str, Any]:
    """The unit's JSON object. Raises InvalidInput, never with its text."""
    if unit.fault is not None:
        raise InvalidInput("", unit.fault)
    try:
        value = json.loads(unit.raw.decode("utf-8"), strict=False)
    except UnicodeDecodeError as exc:
        raise InvalidInput("", f"is not UTF-8 (byte {exc.start + 1})") from exc
    except json.JSONDecodeError as exc:
        raise InvalidInput("", f"is not JSON: {exc.msg} at character {exc.pos + 1}") from exc
    except (ValueError, RecursionError) as exc:
        raise InvalidInput("", "is not JSON that can be read: a number too long, or nested too deeply") from exc
    if not isinstance(value, dict):
        raise InvalidInput("", "is not a JSON object")
    return value


def owner(options: Options, format_: Format) -> str:
    """Whose history an export is. Raises InvalidInput when nobody was named."""
    if options.user_id is None:
        raise InvalidInput("--user", f"is needed: a file of the format {format_} names no user")
    return options.user_id


def own_id(format_: Format, user_id: str, *parts: str) -> str:
    """An id that is the same for the same parts, and another for another user: ids are unique over all users."""
    user = hashlib.sha256(user_id.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    readable = "-".join((format_, user, *parts))
    if len(readable) <= ID_CHARS:
        return readable
    return "-".join((format_, user, fingerprint("\x00".join(parts))))


def fingerprint(text: str | bytes) -> str:
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return hashlib.sha256(data).hexdigest()[:24]


def moment(value: object, *, field: str) -> datetime | str | None:
    """Seconds since 1970, or text that recording checks; None when there is none. Raises InvalidInput."""
    if value is None or isinstance(value, str):
        return value or None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(field, "must be seconds since 1970, or ISO 8601 with an offset")
    try:
        return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError) as exc:
        raise InvalidInput(field, "is outside of the years 1 to 9999") from exc


def drafts(made: Iterator[Draft | None]) -> Parsed:
    """All that an adapter made of one unit; None stands for what is left out."""
    kept: list[Draft] = []
    left_out = 0
    for draft in made:
        if draft is None:
            left_out += 1
        else:
            kept.append(draft)
    return Parsed(drafts=kept, left_out=left_out)
