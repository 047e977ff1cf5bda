"""Tiers begin exactly where the specification says; tokens as the block counts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calmem import budget
from calmem.errors import InvalidInput
from calmem.model import Tier
from calmem.settings import Settings

SETTINGS = Settings()
CAPACITIES = (10, 1_000, 128_000, 200_000, 2_000_000)


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize(
    ("tenths", "at", "below"),
    [(6, Tier.REDUCED, Tier.FULL), (7, Tier.MINIMAL, Tier.REDUCED), (8, Tier.FACTS_ONLY, Tier.MINIMAL)],
)
def test_each_edge_begins_its_own_tier(capacity: int, tenths: int, at: Tier, below: Tier) -> None:
    edge = capacity * tenths // 10
    assert budget.tier(edge, capacity, SETTINGS).tier is at
    assert budget.tier(edge - 1, capacity, SETTINGS).tier is below


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_empty_is_full_tier_and_overfull_is_facts_only(capacity: int) -> None:
    assert budget.tier(0, capacity, SETTINGS).tier is Tier.FULL
    overfull = budget.tier(capacity * 3, capacity, SETTINGS)
    assert overfull.tier is Tier.FACTS_ONLY
    assert (overfull.episodes, overfull.block) == (0, 300)


@given(st.integers(1, 10**9))
def test_edges_hold_for_every_capacity(tenth: int) -> None:
    tiers = [budget.tier(tenth * n, tenth * 10, SETTINGS).tier for n in (6, 7, 8)]
    assert tiers == [Tier.REDUCED, Tier.MINIMAL, Tier.FACTS_ONLY]


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 10**6))
def test_a_fuller_window_never_gets_more(one: int, more: int, capacity: int) -> None:
    before, after = (budget.tier(current, capacity, SETTINGS) for current in (one, one + more))
    assert after.episodes <= before.episodes
    assert after.block <= before.block


@pytest.mark.parametrize(("current", "capacity"), [(1, 0), (1, -5), (-1, 10), (True, 10), (1, True)])
def test_impossible_counts_are_refused(current: int, capacity: int) -> None:
    with pytest.raises(InvalidInput):
        budget.tier(current, capacity, SETTINGS)
    with pytest.raises(InvalidInput):
        budget.fill_ratio(current, capacity)


def test_the_refusal_names_the_field() -> None:
    with pytest.raises(InvalidInput, match="context_window_capacity"):
        budget.fill_ratio(1, 0)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("记忆", 2), ("ab记忆", 3), ("こんにちは", 5), ("한국어", 3)],
)
def test_tokens(text: str, tokens: int) -> None:
    assert budget.tokens(text) == tokens


@given(st.text(), st.text())
def test_quarters_add_up(one: str, other: str) -> None:
    assert budget.quarters(one) + budget.quarters(other) == budget.quarters(one + other)
    assert budget.tokens(one + other) <= budget.tokens(one) + budget.tokens(other)
