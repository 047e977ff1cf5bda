"""Fusing, spreading and packing: deterministic, monotone in k, inside every limit, nothing twice."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import get_args
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calmem import budget, packing, ranking
from calmem.hits import DenseHit, DenseHits, Place, Window, WordHit, WordHits
from calmem.model import Block, Budget, Fact, Item, Style, Tier
from calmem.ranking import Found
from calmem.soft_match import WordTable
from calmem.words import Script
from tests.support.items import START, fact, item


def dense(**cosines: float) -> list[DenseHit]:
    return [DenseHit(chunk_no=int(no[1:]), cosine=cosine) for no, cosine in cosines.items()]


def word(chunk_no: int, bm25: float, covered: float = 0.3) -> WordHit:
    return WordHit(chunk_no=chunk_no, place=Place(chunk_no, 1), sent=START, bm25=bm25, covered=covered)


def apart(*chunk_nos: int) -> dict[int, Place]:
    """Every chunk in a session of its own."""
    return {no: Place(no, 1) for no in chunk_nos}


def fuse(
    dense: list[DenseHit],
    words: list[WordHit],
    places: dict[int, Place],
    script: Script = "latin",
    added: dict[int, float] | None = None,
) -> list[Found]:
    return ranking.fuse(
        dense,
        words,
        places,
        added=added or {},
        weights=ranking.weights(script, understood=True),
        min_cosine=0.4,
        limit=100,
    )


def rank(
    items: list[Item],
    found: list[Found],
    *,
    speakers: frozenset[str] = frozenset(),
    latest_first: bool = False,
    query: str = "",
    script: Script = "latin",
    table: WordTable | None = None,
) -> list[Item]:
    loaded = [(Place(int(one.session_id[1:]), one.seq), one) for one in items]
    weights = ranking.weights(script, understood=True)
    return ranking.rank(
        loaded, found, weights=weights, speakers=speakers, latest_first=latest_first, query=query, table=table
    )


def fit(
    ranked: list[Item],
    *,
    k: int | None = None,
    facts: list[Fact] | None = None,
    block: int = 1_200,
    episodes: int = 900,
    style: Style = "list",
    new_user: bool = False,
) -> tuple[Block, list[Item]]:
    packed = packing.fit(
        ranked,
        k=k,
        facts=facts or [],
        zone=ZoneInfo("UTC"),
        limits=Budget(tier=Tier.FULL, episodes=episodes, block=block),
        style=style,
        new_user=new_user,
    )
    return packed.block, list(packed.items)


def test_a_hit_by_meaning_alone_needs_the_threshold_one_by_words_does_not() -> None:
    found = fuse(dense(c1=0.39, c2=0.41, c3=0.1), [word(3, 5.0)], apart(1, 2, 3))
    hits = {one.chunk_no: one.reasons for one in found if one.chunk_no is not None}
    assert hits == {2: ("meaning",), 3: ("words",)}
    assert fuse(dense(c1=0.39), [], apart(1)) == []


def test_words_weigh_more_in_chinese() -> None:
    hits = dense(c1=0.9), [word(2, 3.0)], apart(1, 2)
    assert fuse(*hits, script="cjk")[0].chunk_no == 2
    own = {one.chunk_no: one.own for one in fuse(*hits) if one.chunk_no}
    assert own == {1: pytest.approx(0.5), 2: pytest.approx(0.5)}


@given(st.permutations([1, 2, 3, 4]))
def test_ties_are_settled_by_place(order: list[int]) -> None:
    found = fuse([], [word(no, 2.0) for no in order], apart(1, 2, 3, 4))
    assert [hit.chunk_no for hit in found if hit.chunk_no] == [1, 2, 3, 4]


def test_the_answer_comes_along_with_its_question_only_in_its_own_session() -> None:
    items = [item("question", seq=1), item("answer", seq=2), item("other", seq=3, session="s2")]
    found = fuse([], [word(1, 2.0)], {1: Place(1, 1)})
    assert [(one.text, one.reasons) for one in rank(items, found)] == [
        ("question", ("words",)),
        ("answer", ("beside",)),
    ]
    assert rank(items, []) == []


def test_a_hit_without_a_place_is_left_out() -> None:
    assert fuse(dense(c1=0.9), [word(2, 1.0)], {}) == []


def test_latest_first_orders_the_relevant_by_time() -> None:
    items = [item("new", seq=30), item("old", seq=10), item("beside the point", seq=50)]
    places = {no: Place(1, no) for no in (10, 30, 50)}
    found = fuse([], [word(10, 2.0), word(30, 1.5), word(50, 0.1)], places)
    assert [one.text for one in rank(items, found, latest_first=True)] == ["new", "old", "beside the point"]


def test_what_was_told_in_the_time_asked_for_comes_first_and_the_rest_stays() -> None:
    window = Window(since=START, until=START + timedelta(days=7))
    days = {1: -2, 2: -1, 3: 0, 4: 6, 5: 7, 6: 14, 7: 15}
    added = ranking.timely({no: START + timedelta(days=day) for no, day in days.items()}, window)
    assert added == {2: 0.12, 3: 0.25, 4: 0.25, 5: 0.12, 6: 0.12}
    assert set(ranking.timely({1: START}, Window(since=None, until=None))) == {1}
    found = fuse([], [word(1, 2.0), word(2, 2.0)], apart(1, 2), added={2: 0.25})
    assert [hit.chunk_no for hit in found if hit.chunk_no] == [2, 1]
    assert found[0].scores["time"] == 0.25
    # The answer beside it has its share.
    assert next(one for one in found if one.place == Place(2, 2)).scores["time"] == 0.25


def test_who_is_named_comes_first_of_two_who_say_the_same() -> None:
    items = [item("I like tea", seq=1, name="Ben"), item("I like tea", seq=1, session="s2", name="Ada")]
    items[1] = replace(items[1], chunk_no=2)
    found = fuse([], [word(1, 2.0), word(2, 2.0)], {1: Place(1, 1), 2: Place(2, 1)})
    assert [one.name for one in rank(items, found)] == ["Ben", "Ada"]
    ranked = rank(items, found, speakers=frozenset({"Ada"}))
    assert [(one.name, "speaker" in one.reasons) for one in ranked] == [("Ada", True), ("Ben", False)]


def test_a_question_says_less_than_a_statement() -> None:
    items = [item("Do you like green tea?", seq=1), item("We do like green tea..", seq=1, session="s2", chunk_no=2)]
    found = fuse([], [word(1, 2.0), word(2, 2.0)], {1: Place(1, 1), 2: Place(2, 1)})
    assert [one.text for one in rank(items, found)] == ["We do like green tea..", "Do you like green tea?"]


def test_what_says_the_query_s_words_otherwise_comes_first() -> None:
    items = [item("The piano came on Monday", seq=1, chunk_no=10), item("The puppy came on Monday", seq=5, chunk_no=20)]
    found = fuse([], [word(10, 2.0), word(20, 2.0)], {10: Place(1, 1), 20: Place(1, 5)})
    table = WordTable.of(["dog", "puppy"], np.array([[1.0, 0.0], [0.8, 0.6]], np.float32))
    asked = "When did the dog come?"
    assert [one.chunk_no for one in rank(items, found, query=asked)] == [10, 20]
    puppy, piano = rank(items, found, query=asked, table=table)
    assert (puppy.chunk_no, piano.chunk_no) == (20, 10)
    assert puppy.scores["soft"] > 0 == piano.scores["soft"]
    assert "soft" not in rank(items, found, query=asked, table=table, script="cjk")[0].scores


def test_in_chinese_what_the_best_speaks_of_brings_the_second_step_of_an_answer() -> None:
    items = [item("我下属的邮箱地址是a@b.cn", seq=10), item("我下属当警察", seq=20), item("舅妈当工程师", seq=30)]
    found = fuse([], [word(10, 2.0), word(20, 0.4), word(30, 0.5)], {no: Place(1, no) for no in (10, 20, 30)})
    query = "邮箱地址是a@b.cn的人做什么工作?"
    ranked = rank(items, found, query=query, script="cjk")
    assert [one.seq for one in ranked] == [10, 20, 30]
    assert ranked[1].scores["related"] > 0 == ranked[2].scores["related"]
    assert [one.seq for one in rank(items, found, query=query)] == [10, 30, 20]


def about(hits: DenseHits, words: WordHits, script: Script = "latin") -> bool:
    return ranking.is_about(hits, words, script=script, min_cosine=0.4)


@pytest.mark.parametrize(
    ("cosine", "covered", "expected"),
    [
        (0.46, 0.0, True),  # near by meaning alone: among 200 and more, 0.45 is asked
        (0.42, 0.0, False),
        (0.42, 0.3, True),  # 0.42 + 0.15 * 0.3 = 0.465
        (0.1, 0.49, False),
        (0.1, 0.5, True),  # half of the query's words
    ],
)
def test_the_best_hit_decides_whether_a_query_is_about_this_memory(
    cosine: float, covered: float, expected: bool
) -> None:
    words = WordHits(hits=[word(1, 1.0, covered)], known=1.0)
    far = [DenseHit(chunk_no=no, cosine=0.0) for no in range(2, 201)]
    assert about(DenseHits(hits=dense(c1=cosine) + far), words) is expected


def test_in_a_small_memory_less_nearness_is_asked() -> None:
    # log1p(1) / log1p(200) is 0.131, so one vector asks for 0.4065.
    assert not about(DenseHits(hits=dense(c1=0.406)), WordHits())
    assert about(DenseHits(hits=dense(c1=0.407)), WordHits())


def test_an_identifier_is_always_about_this_memory() -> None:
    words = WordHits(hits=[replace(word(1, 1.0, 0.1), identifier=True)], known=0.1)
    for script in get_args(Script):
        assert about(DenseHits(hits=dense(c1=0.1)), words, script)


def test_words_of_a_message_without_its_vector_yet_count_more() -> None:
    words = WordHits(hits=[word(1, 1.0, 0.2)], known=1.0)
    for complete in (True, False):
        assert about(DenseHits(hits=dense(c2=0.1), complete=complete), words) is complete


def test_in_chinese_the_words_the_user_ever_used_decide_where_the_model_knows_none() -> None:
    for known, understood, expected in ((0.33, False, False), (0.34, False, True), (0.33, True, True)):
        words = WordHits(hits=[word(1, 1.0, 0.1)], known=known)
        assert about(DenseHits(hits=dense(c1=0.9), understood=understood), words, "cjk") is expected


def test_meaning_weighs_less_where_the_model_knows_few_of_the_words() -> None:
    for script in get_args(Script):
        knows, guesses = (ranking.weights(script, understood=yes) for yes in (True, False))
        assert 0 < guesses.meaning < knows.meaning
        assert replace(guesses, meaning=knows.meaning) == knows


def test_without_k_short_items_go_before_a_long_one_that_says_no_more() -> None:
    long = replace(item("word " * 100, seq=1), score=0.50)
    short = [replace(item(f"short {n}", seq=n), score=0.49) for n in range(2, 6)]
    _, chosen = fit([long, *short], block=100)
    assert [one.text for one in chosen[1:]] == [one.text for one in short]
    assert chosen[0].text == long.text[: len(chosen[0].text)] != long.text
    assert fit([long, *short], k=1)[1] == [long]


TEXTS = st.lists(st.text(min_size=1, max_size=400).filter(str.strip), max_size=8)


@given(TEXTS, st.integers(1, 8), st.integers(40, 300))
def test_a_smaller_k_gives_the_first_of_a_larger(texts: list[str], k: int, tokens: int) -> None:
    ranked = [item(text, seq=3 * seq, session=f"s{seq % 3}") for seq, text in enumerate(texts)]
    _, few = fit(ranked, k=k, block=tokens)
    _, many = fit(ranked, k=k + 3, block=tokens)
    assert len(few) <= k
    assert many[: len(few)] == few


@given(
    TEXTS,
    st.lists(st.text(max_size=200), max_size=8),
    st.integers(1, 400),
    st.integers(0, 400),
    st.sampled_from(["list", "prose"]),
    st.booleans(),
)
def test_the_block_is_never_over_its_budget(
    texts: list[str], values: list[str], tokens: int, episodes: int, style: Style, new_user: bool
) -> None:
    ranked = [item(text, seq=seq, session=f"s{seq % 2}") for seq, text in enumerate(texts)]
    facts = [fact(f"k{n}", value, n) for n, value in enumerate(values)]
    rendered, _ = fit(ranked, facts=facts, block=tokens, episodes=episodes, style=style, new_user=new_user)
    assert rendered.tokens == budget.tokens(rendered.text) <= tokens


def test_of_too_many_facts_the_newest_stay_and_the_rest_are_counted() -> None:
    facts = [fact(f"key {n}", "v" * 200, n) for n in range(300)]
    rendered, _ = fit([], facts=facts, block=300, episodes=0)
    assert "key 299:" in rendered.text
    assert "key 0:" not in rendered.text
    assert rendered.facts_left_out > 0
    assert f"({rendered.facts_left_out} facts left out)" in rendered.text
    assert 200 < rendered.tokens <= 300


def test_overlapping_pieces_become_one_even_when_the_gap_closes_last() -> None:
    message = " ".join(f"word{n}" for n in range(200))
    pieces = [item(message[a:b], start=a, chunk_no=a) for a, b in ((0, 600), (900, 1_400), (500, 1_000))]
    rendered, chosen = fit(pieces)
    assert [(one.start, one.end) for one in chosen] == [(0, 1_400)]
    assert rendered.text.count(message[:1_400].strip()) == 1
    assert rendered.text.count("word130 ") == 1


def test_what_does_not_fit_is_cut_between_graphemes() -> None:
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
    rendered, chosen = fit([item(family * 500)], block=130)
    assert chosen[0].text
    assert len(chosen[0].text) % len(family) == 0
    assert rendered.tokens <= 130


@pytest.mark.parametrize("tokens", [1, 20, 26])
def test_a_budget_below_the_frame_gives_nothing(tokens: int) -> None:
    assert fit([item("tea")], facts=[fact("a", "b")], block=tokens)[0].text == ""
