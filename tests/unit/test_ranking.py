"""Fusing, spreading and packing: deterministic, monotone in k, inside every limit, nothing twice."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calmem import budget, ranking
from calmem.model import Block, Budget, DenseHit, Fact, Item, Style, Tier, WordHit
from tests.support.items import fact, item


def dense(**cosines: float) -> list[DenseHit]:
    return [DenseHit(chunk_no=int(no[1:]), cosine=cosine) for no, cosine in cosines.items()]


def word(chunk_no: int, bm25: float) -> WordHit:
    return WordHit(chunk_no=chunk_no, bm25=bm25, matched=(0,))


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
    return ranking.fit(
        ranked,
        k=k,
        facts=facts or [],
        zone=ZoneInfo("UTC"),
        limits=Budget(tier=Tier.FULL, episodes=episodes, block=block),
        style=style,
        new_user=new_user,
    )


def test_a_hit_by_meaning_alone_needs_the_threshold_one_by_words_does_not() -> None:
    fused = ranking.fuse(dense(c1=0.39, c2=0.41, c3=0.1), [word(3, 5.0)], script="latin", min_cosine=0.4)
    assert {hit.chunk_no for hit in fused} == {2, 3}
    assert ranking.fuse(dense(c1=0.39), [], script="latin", min_cosine=0.4) == []


def test_words_weigh_more_in_chinese() -> None:
    hits = dense(c1=0.9), [word(2, 3.0)]
    assert ranking.fuse(*hits, script="cjk", min_cosine=0.4)[0].chunk_no == 2
    assert [h.score for h in ranking.fuse(*hits, script="latin", min_cosine=0.4)] == [0.5, 0.5]


@given(st.permutations([1, 2, 3, 4]))
def test_ties_are_settled_by_number(order: list[int]) -> None:
    fused = ranking.fuse([], [word(no, 2.0) for no in order], script="latin", min_cosine=0.4)
    assert [hit.chunk_no for hit in fused] == [1, 2, 3, 4]


def test_a_neighbour_comes_along_only_in_its_own_session() -> None:
    items = [item("question", seq=1), item("answer", seq=2), item("other", seq=3, session="s2")]
    fused = ranking.fuse([], [word(1, 2.0)], script="latin", min_cosine=0.4)
    ranked = ranking.spread(items, fused, latest_first=False)
    assert [(one.text, one.reasons) for one in ranked] == [("question", ("words",)), ("answer", ("neighbour",))]
    assert ranking.spread(items, [], latest_first=False) == []


def test_latest_first_orders_the_relevant_by_time() -> None:
    items = [item("new", seq=30), item("old", seq=10), item("beside the point", seq=50)]
    fused = ranking.fuse([], [word(10, 2.0), word(30, 1.5), word(50, 0.1)], script="latin", min_cosine=0.4)
    assert [one.text for one in ranking.spread(items, fused, latest_first=True)] == ["new", "old", "beside the point"]


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
