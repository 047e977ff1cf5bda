"""Chunking: the limits, the overlap, good places to cut, graphemes, and time."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st

from calmem.chunking import chunk
from calmem.model import Span

FAMILY = "👨‍👩‍👧‍👦"
# What makes cutting hard: joiners, flags, combining marks, line ends of two code points, both kinds of spacing.
PARTS = [
    "word",
    " ",
    "\r\n",
    "\n",
    ".",
    "。",
    "文",
    "e\u0301",
    FAMILY,
    "🇩🇪",
    "🇫",
    "!\ufe0f",
    " \u0301",
    "नि",
    "각",
    "x" * 9,
]


def cut(text: str, chars: int = 1_000, overlap: int = 200, pieces: Callable[[str], int] | None = None) -> list[str]:
    whole = [Span(start=0, end=len(text))]
    spans = chunk(text, whole, chunk_chars=chars, overlap_chars=overlap, pieces=pieces, max_pieces=256)
    return [text[span.start : span.end] for span in spans]


def boundaries(text: str) -> set[int]:
    return {0, *(cluster.end() for cluster in regex.finditer(r"\X", text))}


@pytest.mark.parametrize("length", [1, 999, 1_000])
def test_a_message_within_the_limit_is_one_chunk(length: int) -> None:
    assert cut("ä" * length) == ["ä" * length]


def test_one_code_point_over_the_limit_makes_two_chunks() -> None:
    assert [len(piece) for piece in cut("ä" * 1_001)] == [1_000, 201]


def test_astral_characters_count_as_one_code_point() -> None:
    assert len(cut("😀" * 1_000)) == 1


@pytest.mark.parametrize("text", ["", " \n\t ", " " * 3_000])
def test_blank_text_has_no_chunks(text: str) -> None:
    assert cut(text) == []


def test_text_outside_the_allowed_stretches_is_in_no_chunk() -> None:
    text = "before [replayed] after"
    stretches = [Span(start=0, end=7), Span(start=17, end=len(text))]
    spans = chunk(text, stretches, chunk_chars=1_000, overlap_chars=200)
    assert spans == stretches


def test_words_stay_whole_and_neighbours_overlap() -> None:
    words = [f"word{number}" for number in range(1_000)]
    pieces = cut(" ".join(words))
    assert {word for piece in pieces for word in piece.split()} == set(words)
    for left, right in pairwise(pieces):
        shared = [word for word in left.split() if word in set(right.split())]
        assert 150 <= len(" ".join(shared)) <= 200


def test_chinese_is_cut_after_sentence_punctuation() -> None:
    sentence = "我们昨天在公园里看到了一只很大的白色的鸟，它在湖边站了很久很久。"
    pieces = cut(sentence * 60)
    assert len(pieces) > 1
    assert all(piece.endswith("。") for piece in pieces)


def test_without_any_good_place_it_is_cut_at_the_limit() -> None:
    assert [len(piece) for piece in cut("文" * 1_700)] == [1_000, 900]


@pytest.mark.parametrize("lead", ["", "a", "ab"])
@pytest.mark.parametrize("unit", [FAMILY, "🇩🇪", "e\u0301\u0323", "\u0915\u094d\u0937", "\r\n", "ab\r\n"])
def test_a_grapheme_is_never_split(lead: str, unit: str) -> None:
    text = lead + "x" + unit * 1_500
    allowed = boundaries(text)
    spans = chunk(text, [Span(start=0, end=len(text))], chunk_chars=1_000, overlap_chars=200)
    for span in spans:
        assert span.start in allowed
        assert span.end in allowed


def test_one_grapheme_longer_than_the_limit_ends() -> None:
    text = "e" + "\u0301" * 5_000
    pieces = cut(text)
    assert all(0 < len(piece) <= 1_000 for piece in pieces)
    assert len(pieces) >= 5


def test_chunks_fit_the_model_as_well() -> None:
    text = " ".join(f"{number:06d}" for number in range(2_000))

    def count(part: str) -> int:
        return 2 + len(part) // 2

    pieces = cut(text, pieces=count)
    assert all(count(piece) <= 256 for piece in pieces)
    assert {word for piece in pieces for word in piece.split()} == set(text.split())


def test_a_single_code_point_over_the_model_ends() -> None:
    assert cut("abc", pieces=lambda part: 999) == ["a", "b", "c"]


@pytest.mark.parametrize("unit", ["word ", "x", "文", FAMILY, "\u0301", "🇩🇪", "\r\nx"])
def test_long_texts_take_linear_time(unit: str) -> None:
    """Sixteen times the text takes about sixteen times as long (a quadratic method: 256 times)."""

    def seconds(length: int) -> float:
        text = (unit * length)[:length]
        began = time.process_time()
        cut(text)
        return time.process_time() - began

    size = (1 << 19) // len(unit.encode()) * len(unit)
    small = min(seconds(size // 16) for _ in range(3))
    assert seconds(size) < 64 * max(small, 0.002)


@given(
    st.lists(st.sampled_from(PARTS), max_size=120).map("".join),
    st.integers(20, 80),
    st.integers(0, 20),
    st.booleans(),
)
@example("word.wordwordwordwordword", 20, 19, False)
def test_every_text_is_covered_in_order_within_the_limits(text: str, chars: int, overlap: int, counted: bool) -> None:
    def count(part: str) -> int:
        return 250 + len(part) // 6

    pieces = count if counted else None
    whole = Span(start=0, end=len(text))
    spans = chunk(text, [whole], chunk_chars=chars, overlap_chars=overlap, pieces=pieces, max_pieces=256)
    allowed = boundaries(text)
    end = 0
    for span in spans:
        assert span.end - span.start <= chars
        assert not counted or count(text[span.start : span.end]) <= 256
        assert not text[end : span.start].strip()  # only blank text lies between chunks
        assert end - span.start <= overlap
        assert span.end > end
        assert span.start in allowed
        assert span.end in allowed
        end = span.end
    assert not text[end:].strip()
