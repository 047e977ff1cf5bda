"""Cutting a message into chunks. Pure; counts Unicode code points; never splits a grapheme."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import regex

from calmem.model import Span

_GRAPHEME = regex.compile(r"\X")
_SENTENCE_ENDS = frozenset("。！？；…!?;.")


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
        start = covered = span.start
        while start < span.end:
            end = _end(text, start, span.end, chunk_chars, overlap_chars)
            while pieces is not None and end - start > 1 and (count := pieces(text[start:end])) > max_pieces:
                # Proportional first guess, then ever shorter; the loop ends at one code point.
                shorter = max(1, min(end - start - 1, (end - start) * max_pieces // count))
                end = _end(text, start, span.end, shorter, min(overlap_chars, shorter // 4))
            if end <= covered:
                start = covered  # the overlap alone fills the chunk: go on without it
                continue
            covered = end
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
    places = _boundaries(text, start, end)
    late = [place for place in reversed(places) if place >= earliest]
    for place in late:
        if text[place].isspace() or text[place - 1].isspace():
            return place
    for place in late:
        if text[place - 1] in _SENTENCE_ENDS:
            return place
    # One grapheme longer than the limit has no good place: it is cut by code points.
    return places[-1] if places else end


def _start(text: str, previous: int, end: int, overlap: int) -> int:
    """Where the next chunk begins: up to `overlap` before `end`, after white space, and always further on."""
    earliest = max(previous + 1, end - overlap)
    places = [place for place in _boundaries(text, previous, end) if earliest <= place < end]
    for place in places:
        if text[place - 1].isspace():
            return place
    return places[0] if places else end


def _boundaries(text: str, start: int, end: int) -> list[int]:
    """The places in (start, end] between two graphemes, when `start` is one, rising.

    Read from `start`, since a row of flags can only be told apart from its beginning.
    """
    # One code point more shows whether `end` itself is a boundary. A copy, since the pattern looks back as far as it can.
    part = text[start : end + 1]
    if part.isascii() and "\r" not in part:
        return list(range(start + 1, min(end, len(text)) + 1))
    return [place for cluster in _GRAPHEME.finditer(part) if (place := start + cluster.end()) <= end]
