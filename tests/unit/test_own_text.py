"""What of a message is its own, and how stored text is kept from looking like a block."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from calmem.text import CLOSE_MARK, FRAME_SENTENCE, OPEN_MARK, escape, own_text

BLOCK = f"{OPEN_MARK}\n{FRAME_SENTENCE}\n[2025-05-01, session s1]\nuser: The gate is green.\n{CLOSE_MARK}"
MIB = 1_048_576


def own(content: str) -> str:
    """The stretches, joined by a bar."""
    return "|".join(content[span.start : span.end] for span in own_text(content))


def plain(text: str) -> str:
    return text


def as_json(text: str) -> str:
    return json.dumps(text)[1:-1]


def as_json_for_html(text: str) -> str:
    """As Go and some others write JSON."""
    return as_json(text).replace("<", "\\u003c").replace(">", "\\u003E")


def as_json_with_slashes(text: str) -> str:
    """As PHP writes JSON."""
    return as_json(text).replace("/", "\\/")


PLAYED_BACK = pytest.mark.parametrize(
    "played",
    [
        plain,
        as_json,
        lambda text: as_json(as_json(text)),
        as_json_for_html,
        as_json_with_slashes,
        lambda text: as_json(as_json_for_html(text)),
        lambda text: as_json(as_json_with_slashes(text)),
    ],
    ids=["plain", "JSON", "JSON in JSON", "JSON for HTML", "JSON with slashes", "HTML in JSON", "slashes in JSON"],
)


@PLAYED_BACK
def test_whole_blocks_are_cut_out(played: Callable[[str], str]) -> None:
    block = played(BLOCK)
    assert own(block) == ""
    assert own(f"before {block} after") == "before | after"
    assert own(f"{block} one {block}{block} two {block}") == " one | two "


@PLAYED_BACK
def test_an_unfinished_block_is_cut_to_the_end(played: Callable[[str], str]) -> None:
    unfinished = played(BLOCK.removesuffix(CLOSE_MARK))
    assert own(f"before {unfinished}") == "before "
    assert own(f"one {played(BLOCK)} two {unfinished}") == "one | two "


def test_a_block_inside_a_block_ends_at_the_first_end() -> None:
    """Rendered text holds no mark, so the first closing mark is the block's own."""
    assert own(f"a {OPEN_MARK} x {BLOCK} b") == "a | b"
    assert own(f"a {BLOCK}{CLOSE_MARK} b") == f"a |{CLOSE_MARK} b"


@pytest.mark.parametrize(
    "text",
    [
        "",
        CLOSE_MARK,
        FRAME_SENTENCE,
        f"{CLOSE_MARK} and then {FRAME_SENTENCE}",
        f"What does {OPEN_MARK} mean in the prompt?",
        f"{OPEN_MARK} is one thing, {FRAME_SENTENCE} another.",
        f'<moim source="other" version="1">\n{FRAME_SENTENCE}\n{CLOSE_MARK}',
        f"<moim>\n{FRAME_SENTENCE}\n{CLOSE_MARK}",
        f"&lt;{OPEN_MARK[1:]}\n{FRAME_SENTENCE}\n{CLOSE_MARK}",
        "<div>\n  <p>if a < b</p>\n</div>",
        "C:\\moim\\u003c/moim",
    ],
)
def test_what_only_looks_like_a_block_is_kept(text: str) -> None:
    assert own(text) == text


def test_blank_stretches_are_nobodys_words() -> None:
    assert own_text(f" \n{BLOCK}\t\n{BLOCK}\u3000") == []
    assert own_text("   ") == []


@pytest.mark.parametrize(
    "mark",
    [
        CLOSE_MARK,
        OPEN_MARK,
        "<moim>",
        "< / moim >",
        "</MOIM>",
        "<\u200b/\u2060mo\u00adim>",
        "<\n/\tm\u0301oim>",
        "＜／ｍｏｉｍ＞",
        "﹤/moim>",
        "<\\/moim>",
        "\\u003c/moim\\u003e",
        "\\\\u003Cmoim",
        "<//moim>",
        "</𝐦𝐨𝐢𝐦>",
        "</ⓂⓞⒾⅿ>",
        "</mоіm>",  # Cyrillic in the middle
        "<mo\u0131m",
        "<\U000e0001moim",
        "<\u2065moim",  # not assigned, but shown as nothing all the same
        "<\U000e0fffmoim",
        "<mo\u03b9m",  # iota
        "<MO\u0399M",
    ],
)
def test_no_spelling_of_a_mark_survives(mark: str) -> None:
    assert re.search(r"(?:<|＜|﹤|\\u003c)(?!<)", escape(f"a {mark} b"), re.IGNORECASE) is None


def test_only_the_last_of_several_brackets_begins_a_mark() -> None:
    assert escape("<<<moim>") == "<<&lt;moim>"


@pytest.mark.parametrize("text", ["a < b", "<div>", "<mo>im", "</m>", "moim", "&lt;", "<moi", "\\u003cdiv", "＜ａ＞"])
def test_other_text_is_left_to_the_letter(text: str) -> None:
    assert escape(text) == text


PIECES = st.lists(
    st.sampled_from(
        [
            "<",
            "＜",
            "﹤",
            "&lt;",
            "\\",
            "u003c",
            "/",
            "／",
            " ",
            "\u200b",
            "\u0301",
            "m",
            "o",
            "i",
            "ｍ",
            "Ⓞ",
            "𝐢",
            "M",
            "moim",
            "/moim",
            "oim>",
            OPEN_MARK,
            CLOSE_MARK,
            OPEN_MARK[:5],
            CLOSE_MARK[2:],
        ]
    )
    | st.characters(categories=("Cc", "Cf", "Mn", "Zs", "Zl", "Zp"))
    | st.text(max_size=2),
    max_size=14,
).map("".join)


@given(PIECES)
@example("<\x1bmoim")
@example("<\u0591m\x00oim")
def test_escaped_text_holds_no_mark_however_it_is_read(text: str) -> None:
    escaped = escape(text)
    assert OPEN_MARK not in escaped
    assert CLOSE_MARK not in escaped
    folded = unicodedata.normalize("NFKC", escaped).casefold()
    seen = "".join(c for c in folded if unicodedata.category(c) not in ("Cf", "Mn", "Zs", "Cc", "Zl", "Zp"))
    assert re.search(r"<[/\\]*moim", seen) is None
    assert re.search(r"\\u003c[/\\]*moim", seen) is None


@given(PIECES, PIECES)
def test_escaped_text_cannot_end_the_block_it_stands_in(one: str, other: str) -> None:
    block = f"{OPEN_MARK}\n{FRAME_SENTENCE}\n{escape(one)}\n{escape(other)}\n{CLOSE_MARK}"
    for played in (plain, as_json, as_json_for_html, as_json_with_slashes):
        assert own(f"before {played(block)} after") == "before | after"


@pytest.mark.parametrize(
    "unit",
    [
        "<",
        " ",
        "\\",
        "<\\",
        "\\u003c",
        "<moi",
        "< ",
        "\u200b<",
        "m",
        OPEN_MARK,
        CLOSE_MARK,
        OPEN_MARK + FRAME_SENTENCE[:-1],
        f"{OPEN_MARK} ",
        f"{OPEN_MARK}\\n",
        f"{OPEN_MARK}\\",
        BLOCK,
    ],
    ids=lambda unit: unit[:12],
)
def test_hostile_text_of_a_mebibyte_is_read_in_one_pass(unit: str) -> None:
    text = (unit * (MIB // len(unit) + 1))[:MIB]
    spans = own_text(text)
    assert all(0 <= span.start < span.end <= MIB for span in spans)
    assert OPEN_MARK not in escape(text)
