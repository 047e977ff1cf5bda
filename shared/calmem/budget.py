"""How much may be injected: fill ratio, tier, and how tokens are counted. Pure."""

from __future__ import annotations

import re

from calmem.errors import InvalidInput
from calmem.model import Budget, Tier
from calmem.settings import Settings

# Far above any window; keeps ratios and sums inside what a float and a JSON reader can hold.
MOST_TOKENS = 2**53
_CJK = re.compile("[\u2e80-\u9fff\uac00-\ud7ff\uf900-\ufaff\uff01-\uff60\U00020000-\U0003ffff]")


def quarters(text: str) -> int:
    """Quarter tokens, which add up over the pieces of a text: four for each CJK character, one for any other."""
    return len(text) + 3 * len(_CJK.findall(text))


def tokens(text: str) -> int:
    """Tokens as the block counts them: one for each CJK character, one for every four others begun."""
    return -(-quarters(text) // 4)


def fill_ratio(current_tokens: int, context_window_capacity: int) -> float:
    """`current_tokens / context_window_capacity`. Raises InvalidInput for a capacity below 1 or a negative count."""
    _check(current_tokens, context_window_capacity)
    return current_tokens / context_window_capacity


def tier(current_tokens: int, context_window_capacity: int, settings: Settings) -> Budget:
    """The budget for this fill ratio, by whole numbers, so that 0.60, 0.70 and 0.80 begin their own tiers."""
    _check(current_tokens, context_window_capacity)
    tenths = current_tokens * 10
    if tenths < context_window_capacity * 6:
        return Budget(tier=Tier.FULL, episodes=settings.full_episode_tokens, block=settings.full_block_tokens)
    if tenths < context_window_capacity * 7:
        return Budget(tier=Tier.REDUCED, episodes=settings.reduced_episode_tokens, block=settings.reduced_block_tokens)
    if tenths < context_window_capacity * 8:
        return Budget(tier=Tier.MINIMAL, episodes=settings.minimal_episode_tokens, block=settings.minimal_block_tokens)
    return Budget(tier=Tier.FACTS_ONLY, episodes=0, block=settings.facts_block_tokens)


def searching_tiers(settings: Settings) -> list[Budget]:
    """The budgets of the tiers that search, the largest first."""
    return [tier(tenths, 10, settings) for tenths in (0, 6, 7)]


def _check(current_tokens: int, context_window_capacity: int) -> None:
    for field, value, least in (
        ("current_tokens", current_tokens, 0),
        ("context_window_capacity", context_window_capacity, 1),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST_TOKENS:
            raise InvalidInput(field, f"must be a whole number of {least} to {MOST_TOKENS}")
