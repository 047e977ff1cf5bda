"""Which turns the upstream still sees. Pure, and a function of the conversation alone: no state between requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from calmem_services.gateway.conversation import Conversation, Turn


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Tokens of the model's window, and the fill ratios at which turns leave it and down to which they do.

    `summary_tokens`: what is kept free for the summary of those that left.
    """

    capacity: int
    compact_at: float
    compact_to: float
    summary_tokens: int


@dataclass(frozen=True, kw_only=True)
class Window:
    """The turns kept and dropped, each in order, and the tokens of those kept, tools included."""

    kept: Sequence[Turn]
    dropped: Sequence[Turn]
    tokens: int


def compact(conversation: Conversation, limits: Limits) -> Window:
    """Play the conversation through the window, request by request, as it has been sent.

    At the fill ratio `compact_at` the oldest exchanges leave until `compact_to` is reached. An exchange, from the user's
    message to the last answer before the next one, leaves whole; system messages and the running exchange never do, but
    of a running exchange too long for the window its oldest rounds of tool calls leave with their results.
    The same conversation with more at its end keeps the same beginning until the next compaction.
    """
    spoken = [turn for turn in conversation.turns if turn.role != "system"]
    base = conversation.fixed_tokens + sum(turn.tokens for turn in conversation.turns if turn.role == "system")
    exchanges = _exchanges(spoken)
    first = _slide(exchanges, base, limits)
    dropped = [turn for exchange in exchanges[:first] for turn in exchange]
    kept = exchanges[first:]
    if kept and _ratio(base + _sum(kept) + (limits.summary_tokens if first else 0), limits) >= limits.compact_at:
        head, *rounds = _rounds(kept[-1])
        held = base + _sum([*kept[:-1], head]) + limits.summary_tokens
        gone = _slide(rounds, held, replace(limits, summary_tokens=0))
        dropped += [turn for one in rounds[:gone] for turn in one]
        kept = [*kept[:-1], head, *rounds[gone:]]
    left = {turn.place for turn in dropped}
    return Window(
        kept=[turn for turn in conversation.turns if turn.place not in left],
        dropped=dropped,
        tokens=base + _sum(kept),
    )


def _slide(units: Sequence[Sequence[Turn]], base: int, limits: Limits) -> int:
    """How many units have left when the last request is sent; the last unit never leaves."""
    first = used = 0
    for number, unit in enumerate(units):
        for place, turn in enumerate(unit):
            used += turn.tokens
            following = unit[place + 1].role if place + 1 < len(unit) else None
            sent = turn.role != "assistant" and following in (None, "assistant")
            if not sent or _ratio(base + used + (limits.summary_tokens if first else 0), limits) < limits.compact_at:
                continue
            while first < number and _ratio(base + used + limits.summary_tokens, limits) > limits.compact_to:
                used -= _sum([units[first]])
                first += 1
    return first


def _exchanges(turns: Sequence[Turn]) -> list[list[Turn]]:
    """Each from a user's message (or several in a row) to before the next one's."""
    exchanges: list[list[Turn]] = []
    for place, turn in enumerate(turns):
        opens = turn.role == "user" and (place == 0 or turns[place - 1].role != "user")
        if opens or not exchanges:
            exchanges.append([])
        exchanges[-1].append(turn)
    return exchanges


def _rounds(exchange: Sequence[Turn]) -> list[list[Turn]]:
    """What stands before the first answer, then each answer of the model with the results of its calls."""
    rounds: list[list[Turn]] = [[]]
    for turn in exchange:
        if turn.role == "assistant":
            rounds.append([])
        rounds[-1].append(turn)
    return rounds


def _sum(units: Sequence[Sequence[Turn]]) -> int:
    return sum(turn.tokens for unit in units for turn in unit)


def _ratio(tokens: int, limits: Limits) -> float:
    return tokens / limits.capacity
