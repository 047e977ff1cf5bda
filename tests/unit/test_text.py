"""The gate for text that enters: sanitising, ids and times."""

from __future__ import annotations

import time
import unicodedata
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calmem.errors import InvalidInput
from calmem.text import (
    METADATA_BYTES,
    METADATA_DEPTH,
    clean,
    clean_id,
    clean_label,
    clean_metadata,
    normalize,
    parse_time,
)
from calmem.words import query_words

LIMIT = 1_048_576
# Every code point, halves of pairs included; small alphabets would rarely put two halves side by side.
ANY_TEXT = st.text(st.characters(exclude_categories=()) | st.sampled_from("\x00\ud83c\udf78e\u0301"))


@pytest.mark.parametrize(
    ("content", "stored"),
    [
        ("Acme moved\x00 to Shenzhen.", "Acme moved to Shenzhen."),
        ("\x00\x00", ""),
        ("cheers \ud83c and \udf78", "cheers \ufffd and \ufffd"),
        ("cheers \ud83c\udf78", "cheers 🍸"),
        ("\udf78\ud83c", "\ufffd\ufffd"),
        ("cafe\u0301", "café"),
        ("\u1112\u1161\u11ab", "한"),
        ("half\u00a0open ﬁle Ⅳ", "half\u00a0open ﬁle Ⅳ"),
        ("a\tb\r\nc\x1b[0m", "a\tb\r\nc\x1b[0m"),
        (None, ""),
        ("", ""),
        ([], ""),
        ([{"type": "text", "text": "look"}, {"type": "text", "text": "here"}], "look\nhere"),
        (["look", {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}], "look\n[image]"),
        ([{"type": "input_text", "text": "look"}, {"type": "input_audio", "input_audio": {}}], "look\n[audio]"),
        ([{"type": "refusal", "refusal": "I cannot say."}], "I cannot say."),
        (({"type": "file", "file": {"file_id": "f1"}},), "[file]"),
    ],
)
def test_text_as_it_is_stored(content: object, stored: str) -> None:
    assert clean(content, limit_bytes=LIMIT) == stored


@given(ANY_TEXT)
def test_what_is_stored_is_what_postgres_takes_and_stays_so(content: str) -> None:
    stored = clean(content, limit_bytes=LIMIT)
    assert "\x00" not in stored
    stored.encode("utf-8")
    assert clean(stored, limit_bytes=LIMIT) == stored


@pytest.mark.parametrize(
    ("content", "field"),
    [
        (5, "content"),
        (b"bytes", "content"),
        (bytearray(b"bytes"), "content"),
        ({"type": "text", "text": "not in a list"}, "content"),
        ([5], "content[0]"),
        (["fine", None], "content[1]"),
        ([["nested"]], "content[0]"),
        ([{"text": "no type"}], "content[0].type"),
        ([{"type": ""}], "content[0].type"),
        ([{"type": "text"}], "content[0].text"),
        ([{"type": "text", "text": "fine"}, {"type": "output_text", "text": 5}], "content[1].text"),
    ],
)
def test_other_contents_are_refused_by_name(content: object, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        clean(content, limit_bytes=LIMIT)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("content", "size"),
    [("a" * 11, 11), ("é" * 6, 12), ("字" * 4, 12), ("🍸🍸🍸", 12), (["aaaaa", "aaaaa"], 11), ("\ud83c" * 4, 12)],
)
def test_the_limit_is_in_bytes_and_the_error_says_how_many(content: object, size: int) -> None:
    with pytest.raises(InvalidInput) as refused:
        clean(content, field="query", limit_bytes=10)
    assert refused.value.field == "query"
    assert f"has {size} bytes" in refused.value.detail
    assert "at most 10 " in refused.value.detail


@pytest.mark.parametrize("content", ["a" * 10, "é" * 5, "a" * 10 + "\x00" * 100, "e\u0301" * 5])
def test_what_is_counted_is_what_is_stored(content: str) -> None:
    assert len(clean(content, limit_bytes=10).encode()) == 10


@pytest.mark.parametrize(
    "value", ["u1", "Ada Lovelace", "a*b", "100%", "张伟", "e\u0301", "👩\u200d🚀", "a/b?c#d", "x" * 256]
)
def test_ids_are_kept_as_they_are_in_nfc(value: str) -> None:
    assert clean_id(value, field="user_id") == ("é" if value == "e\u0301" else value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        5,
        True,
        b"ada",
        ["ada"],
        {"id": "ada"},
        "",
        " ",
        "\u00a0\u3000",
        "*",
        "%",
        " * ",
        "x" * 257,
        "\u200b",
        "\u200d\ufe0f",
        "\u00ad",
        "\u0301",
        "\u20dd",
        "\u3164",
        "\u2800",
        "\U000e0041",
        "a\nb",
        "a\tb",
        "a\x7f",
        "a\u2028b",
        "a\x85b",
    ],
)
def test_what_names_nobody_is_no_id(value: object) -> None:
    with pytest.raises(InvalidInput) as refused:
        clean_id(value, field="user_id")
    assert refused.value.field == "user_id"


@pytest.mark.parametrize("value", ["a\ud800", "\ud83c\udf78", "a\x00", "\x00a"])
def test_an_id_that_had_to_be_repaired_is_refused(value: str) -> None:
    """Repaired, "a\\ud800" and "a\\udfff" would be one id, and "a\\0" would be "a"."""
    with pytest.raises(InvalidInput, match=r"surrogate|control"):
        clean_id(value, field="session_id")


@given(ANY_TEXT, ANY_TEXT)
def test_two_ids_are_one_only_when_they_are_canonically_the_same(one: str, other: str) -> None:
    try:
        same = clean_id(one, field="user_id") == clean_id(other, field="user_id")
    except InvalidInput:
        return
    assert same == (unicodedata.normalize("NFC", one) == unicodedata.normalize("NFC", other))


@pytest.mark.parametrize(
    ("value", "kept"),
    [(None, None), ("", None), (" \n ", None), (" Ada\nL. ", "Ada L."), ("a\x00b", "ab"), ("\ud800", "\ufffd")],
)
def test_labels_are_one_line(value: object, kept: str | None) -> None:
    assert clean_label(value, field="name") == kept


@pytest.mark.parametrize("value", [5, b"x", ["x"], "x" * 201])
def test_other_labels_are_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match="name"):
        clean_label(value, field="name")


def test_metadata_is_cleaned_to_its_depths() -> None:
    assert clean_metadata(None) == {}
    given_ = {"a\x00": ["\ud800", {"b": "e\u0301"}], "n": 1.5, "t": True, "none": None}
    assert clean_metadata(given_) == {"a": ["\ufffd", {"b": "é"}], "n": 1.5, "t": True, "none": None}


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "value",
    [
        "text",
        ["list"],
        {"x": float("nan")},
        {"x": float("inf")},
        {"x": {1, 2}},
        {"x": b"bytes"},
        {"x": "y" * METADATA_BYTES},
        nested(METADATA_DEPTH + 1),
        nested(100_000),
    ],
    ids=lambda value: type(value).__name__,
)
def test_metadata_that_is_no_small_json_object_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match="metadata"):
        clean_metadata(value)
    assert clean_metadata(nested(METADATA_DEPTH)) == nested(METADATA_DEPTH)


@pytest.mark.parametrize(
    ("value", "instant"),
    [
        ("2025-03-30T02:30:00+02:00", datetime(2025, 3, 30, 0, 30, tzinfo=UTC)),
        ("2025-05-01T23:30:00-07:00", datetime(2025, 5, 2, 6, 30, tzinfo=UTC)),
        ("2025-03-30T02:30:00Z", datetime(2025, 3, 30, 2, 30, tzinfo=UTC)),
        ("2025-03-30 02:30:00.123456+05:45", datetime(2025, 3, 29, 20, 45, 0, 123456, tzinfo=UTC)),
        ("2025-03-30T00:15-00:30", datetime(2025, 3, 30, 0, 45, tzinfo=UTC)),
        ("20250330T023000+0200", datetime(2025, 3, 30, 0, 30, tzinfo=UTC)),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
        ("9999-12-31T23:59:59+14:00", datetime(9999, 12, 31, 9, 59, 59, tzinfo=UTC)),
        (datetime(2025, 3, 30, 2, 30, tzinfo=timezone(timedelta(hours=2))), datetime(2025, 3, 30, 0, 30, tzinfo=UTC)),
    ],
)
def test_times_become_instants_in_utc(value: object, instant: datetime) -> None:
    parsed = parse_time(value, field="created_at")
    assert parsed == instant
    assert parsed.tzinfo is UTC


class Nowhere(tzinfo):
    """A zone that does not know its own offset."""

    def utcoffset(self, _: datetime | None) -> None:
        return None

    dst = tzname = utcoffset


@pytest.mark.parametrize(
    "value",
    [
        "2025-03-30T02:30:00",
        "2025-03-30",
        "2025-W13-7",
        datetime(2025, 3, 30, 2, 30),  # noqa: DTZ001 - naive on purpose
        datetime(2025, 3, 30, 2, 30, tzinfo=Nowhere()),
    ],
)
def test_a_naive_time_is_refused_and_an_offset_asked_for(value: object) -> None:
    with pytest.raises(InvalidInput, match="add an offset") as refused:
        parse_time(value, field="created_at")
    assert refused.value.field == "created_at"


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        1_743_300_000,
        1.5,
        b"2025-03-30T02:30:00Z",
        date(2025, 3, 30),
        ["2025-03-30T02:30:00Z"],
        "",
        "yesterday",
        "1743300000",
        "2025-02-30T00:00:00Z",
        "2025-03-30T25:00:00Z",
        "2025-03-30T02:30:00+25:00",
        "2025-03-30T02:30:00\ud800",
        "2025-03-30T02:30:00Z\x00",
        "10000-01-01T00:00:00Z",
        "-0001-01-01T00:00:00Z",
    ],
)
def test_what_is_no_time_is_refused_with_an_example(value: object) -> None:
    with pytest.raises(InvalidInput, match=r"2025-03-30T02:30:00\+02:00") as refused:
        parse_time(value, field="since")
    assert refused.value.field == "since"


@pytest.mark.parametrize("value", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-00:01"])
def test_an_instant_outside_of_the_calendar_is_refused(value: str) -> None:
    with pytest.raises(InvalidInput, match="years 1 to 9999"):
        parse_time(value, field="until")


ROWS = st.text(
    st.sampled_from("\u0301\u0327\u0345\u0344\u0f73\u0f71\u093c\uff9e\uff9f\u20e3\u034fa\u00e9\uff8a\uac00"),
    min_size=30,
    max_size=80,
)


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
@given(row=ROWS)
def test_rows_of_marks_are_normalised_as_unicode_says(form: Literal["NFC", "NFD", "NFKC", "NFKD"], row: str) -> None:
    assert normalize(form, row) == unicodedata.normalize(form, row)


@pytest.mark.parametrize("marks", ["\u0301\u0327", "\u0f73", "\uff9e\u0301", "\u0345\u0315\u0301\u0327\u0334"])
def test_a_message_of_nothing_but_marks_is_cleaned_in_linear_time(marks: str) -> None:
    """By the standard library alone 32,768 alternating marks take 2 s, and twice as many four times as long."""
    said = "a" + marks * (80_000 // len(marks))
    began = time.perf_counter()
    cleaned = clean(said, limit_bytes=LIMIT)
    query_words(cleaned[:20_000])
    assert time.perf_counter() - began < 4
