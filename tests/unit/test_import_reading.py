"""History files as units: borders, limits, encodings, and going on from the middle."""

from __future__ import annotations

import gzip
import json
from io import BufferedReader, BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calmem.errors import InvalidInput
from calmem_services.importing.formats import Format, parse, tell
from calmem_services.importing.reading import HEAD_BYTES, Form, Source, Unit

LIMIT = 1_000


def source(data: bytes) -> Source:
    return Source(BufferedReader(BytesIO(data)))


def units(data: bytes, form: Form, limit: int = LIMIT) -> list[Unit]:
    return list(source(data).units(form, limit_bytes=limit))


def told(data: bytes, form: Form, limit: int = LIMIT) -> list[tuple[int, object]]:
    """(number, the JSON value or what is wrong)."""
    return [(one.number, one.fault or json.loads(one.raw)) for one in units(data, form, limit)]


def test_lines_keep_their_numbers_over_blank_and_long_ones() -> None:
    data = b'\xef\xbb\xbf{"a": 1}\r\n\n' + b"x" * (2 * LIMIT + 7) + b'\n{"a": "\xe2\x80\xa8"}\n{"a": 3}'

    assert told(data, Form.LINES) == [
        (1, {"a": 1}),
        (3, f"has more than {LIMIT} bytes"),
        (4, {"a": "\u2028"}),
        (5, {"a": 3}),
    ]


def test_lines_beyond_the_head_are_whole() -> None:
    lines = [json.dumps({"n": n, "text": "é" * (n % 90)}) for n in range(3_000)]
    data = "\n".join(lines).encode()
    assert len(data) > 2 * HEAD_BYTES

    assert [value for _, value in told(data, Form.LINES)] == [json.loads(line) for line in lines]


def test_a_too_long_element_is_one_bad_unit() -> None:
    data = b'[{"a": 1}, {"a": "' + b'[,]\\"' * LIMIT + b'"}, {"a": 3}]'

    assert told(data, Form.LIST) == [(1, {"a": 1}), (2, f"has more than {LIMIT} bytes"), (3, {"a": 3})]


@pytest.mark.parametrize(
    ("data", "count", "fault"),
    [
        (b'[{"a": 1}, {"a": 2', 1, "cut off"),
        (b'[{"a": 1}, ', 1, "cut off"),
        (b'[{"a": "1]', 0, "cut off"),
        (b'[{"a": 1}] more', 1, "not complete JSON"),
    ],
)
def test_what_ends_a_list_too_early_is_told(data: bytes, count: int, fault: str) -> None:
    found = units(data, Form.LIST)

    assert len(found) == count + 1
    assert fault in (found[-1].fault or "")


def test_objects_may_go_over_lines() -> None:
    assert told(b'{\n"a": {"b": [1]}\n}\n {"c":\n2}\n', Form.OBJECTS) == [(1, {"a": {"b": [1]}}), (2, {"c": 2})]
    assert "not complete" in str(told(b'{"a": {', Form.OBJECTS))


VALUES = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.lists(VALUES, max_size=6), st.integers(1, 7), st.booleans())
def test_a_list_falls_into_its_elements(values: list[object], chunk: int, ascii_only: bool) -> None:
    data = json.dumps(values, ensure_ascii=ascii_only, indent=1).encode("utf-8", "surrogatepass")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("calmem_services.importing.reading._CHUNK", chunk)
        patch.setattr("calmem_services.importing.reading.HEAD_BYTES", chunk)
        found = told(data, Form.LIST, limit=100_000)

    assert [value for _, value in found] == values


@pytest.mark.parametrize(
    ("form", "data"),
    [
        (Form.LINES, b"\n".join(b'{"n": %d}' % n for n in range(9))),
        (Form.LIST, b"[" + b" ,\n".join(b'{"n": %d}' % n for n in range(9)) + b"]\n"),
        (Form.OBJECTS, b"\n".join(b'{\n"n": %d}' % n for n in range(9))),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_going_on_between_any_two_units(form: Form, data: bytes, packed: bool) -> None:
    stored = gzip.compress(data) if packed else data
    whole = units(stored, form)
    assert [json.loads(one.raw)["n"] for one in whole] == list(range(9))
    first = source(stored)
    for unit in first.units(form, limit_bytes=LIMIT):
        later = source(stored)
        assert later.skip_to(offset=first.offset, number=unit.number, digest=first.digest)
        assert list(later.units(form, limit_bytes=LIMIT)) == whole[unit.number :]
        other = source(gzip.compress(data.replace(b"0", b"5", 1)) if packed else data.replace(b"0", b"5", 1))
        assert not other.skip_to(offset=first.offset, number=unit.number, digest=first.digest)
        assert not source(stored[:3] if not packed else gzip.compress(b"{")).skip_to(
            offset=first.offset, number=unit.number, digest=first.digest
        )


def test_a_cut_off_gz_gives_what_it_has_and_says_so() -> None:
    data = gzip.compress(b"".join(json.dumps({"n": n * 7919}).encode() + b"\n" for n in range(50_000)))
    found = units(data[: len(data) // 2], Form.LINES)

    assert len(found) > 1_000
    assert "damaged or cut off" in (found[-1].fault or "")


def test_utf_16_is_refused() -> None:
    with pytest.raises(InvalidInput, match="UTF-8"):
        source('{"a": 1}'.encode("utf-16"))


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b'{"a": "\xff"}', "is not UTF-8 \\(byte 8\\)"),
        (b"{", "is not JSON"),
        (b"[1, 2]", "not a JSON object"),
        (b"[" * 100_000, "nested too deeply"),
        (b"1" * 5_000, "number too long"),
    ],
)
def test_what_cannot_be_parsed_is_said(raw: bytes, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        parse(Unit(number=1, raw=raw))


def test_controls_and_lone_surrogates_reach_the_sanitiser() -> None:
    assert parse(Unit(number=1, raw=b'{"a": "x\x00y\t\\ud83c"}')) == {"a": "x\x00y\t\ud83c"}


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b'{"user_id": "a", "session_id": "s", "role": "user", "content": ""}\n', (Format.JSONL, Form.LINES)),
        (b'{"session_id": "s", "role": "user", "metadata": {"messages": []}}\n', (Format.JSONL, Form.LINES)),
        (b'junk\n{"user_id": "a"}\n', (Format.JSONL, Form.LINES)),
        (b'[{"title": "\\"chat_messages\\": [", "mapping": {"messages": {', (Format.CHATGPT, Form.LIST)),
        (b'\n [\n {"uuid": "x", "chat_messages": [{"role": 1, "mapping": 2', (Format.CLAUDE, Form.LIST)),
        (b'{"messages": [{"role": "user"', (Format.OPENAI, Form.LINES)),
        (b'{\n  "model": "m",\n  "messages": [', (Format.OPENAI, Form.OBJECTS)),
        (b'[{"role": "user", "content": "hi"}]', (Format.OPENAI, Form.LIST)),
        (b"[1, 2]", (None, Form.LIST)),
        (b"", (None, Form.LINES)),
    ],
)
def test_the_format_is_told_by_the_first_keys(head: bytes, expected: tuple[Format | None, Form]) -> None:
    assert tell(head) == expected
