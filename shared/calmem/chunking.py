"""Cutting a message into chunks. Pure; counts Unicode code points; never splits a grapheme."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import regex

from calmem.model import Span

_GRAPHEME = regex.compile(r"\X")
_SENTENCE_END = regex.compile(r"[。！？；…!?;.]")
# How far back from a position the start of its grapheme is looked for; longer clusters are cut by code points.
_LONGEST_GRAPHEME = 200


def chunk(
    text: str,
    spans: Sequence[Span],
    *,
    chunk_chars: int,
    overlap_chars: int,
    pieces: Callable[[str], int] | None = None,
    max_pieces: int = 256,
) -> list[Span]:
    """The chunks of `text` inside the given stretches, in order.

    Each has at most `chunk_chars` code points and, when `pieces` counts them, at most `max_pieces` word pieces;
    neighbours overlap by up to `overlap_chars`. Ends move back to white space inside the overlap, else to
    sentence punctuation, else to a grapheme's start. A stretch within both limits is one chunk; blank chunks are left out.
    """
    chunks: list[Span] = []
    for span in spans:
        start = span.start
        while start < span.end:
            end = _end(text, start, span.end, chunk_chars, overlap_chars)
            while pieces is not None and end - start > 1 and (count := pieces(text[start:end])) > max_pieces:
                # Proportional first guess, then ever shorter; the loop ends at one code point.
                shorter = max(1, min(end - start - 1, (end - start) * max_pieces // count))
                end = _end(text, start, span.end, shorter, min(overlap_chars, shorter // 4))
            if text[start:end].strip():
                chunks.append(Span(start=start, end=end))
            if end >= span.end:
                break
            start = _start(text, start, end, min(overlap_chars, (end - start) // 4))
    return chunks


def _end(text: str, start: int, stop: int, limit: int, overlap: int) -> int:
    """Where a chunk that begins at `start` ends: at most `limit` code points on, at a good place."""
    if stop - start <= limit:
        return stop
    end = start + limit
    earliest = max(start + 1, end - overlap)
    if text[end].isspace():
        return end
    for place in range(end, earliest, -1):
        if text[place - 1].isspace():
            return place
    ends = list(_SENTENCE_END.finditer(text, earliest, end))
    return ends[-1].end() if ends else _grapheme_start(text, start, end)


def _start(text: str, previous: int, end: int, overlap: int) -> int:
    """Where the next chunk begins: up to `overlap` before `end`, after white space, and always further on."""
    earliest = max(previous + 1, end - overlap)
    for place in range(earliest, end):
        if text[place - 1].isspace():
            return place
    return max(_grapheme_start(text, previous, earliest), previous + 1) if overlap else end


def _grapheme_start(text: str, start: int, place: int) -> int:
    """The start of the grapheme at `place`; `place` itself when that would leave nothing after `start`."""
    window = max(start, place - _LONGEST_GRAPHEME)
    for cluster in _GRAPHEME.finditer(text, window, min(len(text), place + _LONGEST_GRAPHEME)):
        if cluster.end() > place:
            return cluster.start() if cluster.start() > start else place
    return place
