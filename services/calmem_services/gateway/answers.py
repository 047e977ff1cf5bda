"""The assistant's message in what the upstream answered. Pure."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any


def read_answer(raw: bytes, *, content_type: str, content_encoding: str) -> dict[str, Any] | None:
    """The message of a complete answer with one choice, from JSON or a stream of events; None for anything else.

    An answer that broke off is none: the host may keep it or not, and replays it when it does.
    """
    try:
        plain = _decoded(raw, content_encoding.strip().lower())
        if content_type.startswith("text/event-stream"):
            return _from_events(plain.decode("utf-8", "replace"))
        return _from_choices(json.loads(plain))
    except (ValueError, TypeError, AttributeError, zlib.error, RecursionError):  # of another shape than it should be
        return None


def _decoded(raw: bytes, encoding: str) -> bytes:
    if encoding in ("", "identity"):
        return raw
    if encoding in ("gzip", "deflate"):
        return zlib.decompress(raw, wbits=47)
    raise ValueError(f"content-encoding {encoding}")


def _from_choices(answer: object) -> dict[str, Any] | None:
    choices = answer.get("choices") if isinstance(answer, Mapping) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], Mapping):
        return None
    message = choices[0].get("message")
    return _message(message) if isinstance(message, Mapping) else None


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    return {key: message.get(key) for key in ("content", "refusal", "tool_calls", "function_call")}


def _from_events(events: str) -> dict[str, Any] | None:
    content: list[str] = []
    refusal: list[str] = []
    calls: dict[int, dict[str, Any]] = {}
    finished = False
    for event in _data(events):
        if event == "[DONE]":
            break
        choices = json.loads(event).get("choices") or []
        for choice in choices:
            if choice.get("index", 0) != 0:
                return None
            delta = choice.get("delta") or {}
            content.append(delta.get("content") or "")
            refusal.append(delta.get("refusal") or "")
            for call in delta.get("tool_calls") or []:
                _merge_call(calls.setdefault(call.get("index", 0), {}), call)
            finished = finished or choice.get("finish_reason") is not None
    if not finished:
        return None
    return {
        "content": "".join(content) or None,
        "refusal": "".join(refusal) or None,
        "tool_calls": [calls[place] for place in sorted(calls)] or None,
    }


def _data(events: str) -> Iterator[str]:
    """The data of each event; several lines of one event belong together."""
    lines: list[str] = []
    for line in [*events.replace("\r\n", "\n").replace("\r", "\n").split("\n"), ""]:
        if line.startswith("data:"):
            lines.append(line[5:].removeprefix(" "))
        elif not line and lines:
            yield "\n".join(lines)
            lines = []


def _merge_call(call: dict[str, Any], delta: Mapping[str, Any]) -> None:
    call.update({key: delta[key] for key in ("id", "type") if delta.get(key)})
    function = call.setdefault("function", {"name": "", "arguments": ""})
    for key, piece in (delta.get("function") or {}).items():
        if isinstance(piece, str):
            function[key] = function.get(key, "") + piece
