"""The MOIM block: chosen items and facts as bytes. Pure; the same input gives the same bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from calmem import budget
from calmem.model import Block, Fact, Item, Style
from calmem.text import CLOSE_MARK, FRAME_SENTENCE, OPEN_MARK, escape

NEW_USER = "Nothing is remembered of this user yet; do not invent earlier conversations."
FACTS = "Facts of this session:"
PROSE = "From earlier conversations:"

# A line of stored text that reads like one of ours is marked, so that nobody can forge when, who or which fact: headers,
# speakers by their role, and the lines that open the parts of a block.
_LINE_LIKE = re.compile(
    r"(?:^|(?<=[\r\v\f\x85\u2028\u2029]))(?=[^\S\n]*(?:\[\d{4}-\d\d-\d\d, session |On \d{4}-\d\d-\d\d \(session "
    r"|(?:user|assistant|system|tool)(?: said)?: "
    rf"|{re.escape(FACTS)}|{re.escape(PROSE)}|{re.escape(FRAME_SENTENCE)}|{re.escape(NEW_USER)}|\(\d+ facts? left out\)))",
    re.MULTILINE,
)


@dataclass(frozen=True, kw_only=True)
class Look:
    """What decides how an item is written."""

    style: Style
    zone: ZoneInfo


def header(item: Item, look: Look) -> str:
    """The line above the items of one session and one day (in the user's zone)."""
    day = _day(item.created_at, look.zone)
    session = escape(" ".join(item.session_id.split()))
    return f"[{day}, session {session}]" if look.style == "list" else f"On {day} (session {session})"


def _day(moment: datetime, zone: ZoneInfo) -> str:
    try:
        return moment.astimezone(zone).date().isoformat()
    except OverflowError:  # a day at either end of the calendar, where the zone's own day has no name
        return moment.date().isoformat()


def line(item: Item, look: Look) -> str:
    """Who spoke and what, the stored text to the letter except for what could break the frame."""
    speaker = escape(item.name or item.role)
    said = _stored(item.text.strip())
    return f"{speaker}: {said}" if look.style == "list" else f"{speaker} said: “{said}”"


def fact_line(fact: Fact) -> str:
    return f"- {_stored(fact.key)}: {_stored(fact.value)}"


def _stored(text: str) -> str:
    return _LINE_LIKE.sub("\\\\", escape(text))


def fit_facts(facts: Sequence[Fact], room: int) -> tuple[list[Fact], int]:
    """The newest facts whose lines fit into `room` quarter tokens, oldest first, and how many are left out.

    One that does not fit does not keep older, shorter ones out.
    """
    lines = [budget.quarters(fact_line(fact)) + 1 for fact in facts]
    room -= budget.quarters(FACTS) + 1
    if sum(lines) <= room:
        return list(facts), 0
    room -= budget.quarters(_left_out(len(facts))) + 1
    kept: list[Fact] = []
    for fact, cost in zip(reversed(facts), reversed(lines), strict=True):
        if cost <= room:
            room -= cost
            kept.append(fact)
    return kept[::-1], len(facts) - len(kept)


def _left_out(count: int) -> str:
    return f"({count} facts left out)" if count != 1 else "(1 fact left out)"


def facts_quarters(facts: Sequence[Fact], left_out: int) -> int:
    """Quarter tokens of the facts' part of a block, line ends included."""
    if not facts and not left_out:
        return 0
    lines = [FACTS, *([_left_out(left_out)] if left_out else []), *map(fact_line, facts)]
    return sum(budget.quarters(one) + 1 for one in lines)


def frame_quarters(*, new_user: bool, style: Style) -> int:
    """Quarter tokens of a block without facts and items, line ends included."""
    lines = [
        OPEN_MARK,
        FRAME_SENTENCE,
        CLOSE_MARK,
        *([NEW_USER] if new_user else []),
        *([PROSE] if style == "prose" else []),
    ]
    return sum(budget.quarters(one) + 1 for one in lines)


def render(
    *,
    items: Sequence[Item],
    facts: Sequence[Fact],
    facts_left_out: int,
    look: Look,
    new_user: bool,
) -> Block:
    """The block with these items, oldest first, under one header for each session and day.

    Sessions that ran at the same time do not alternate: each comes whole, the one that began first before the other.

    Empty when there is nothing to say. The caller has chosen what fits the budget (see `calmem.packing.fit`).
    """
    if not items and not facts and not facts_left_out and not new_user:
        return Block(text="", tokens=0, facts_left_out=0)
    body: list[str] = []
    if facts or facts_left_out:
        body.append(FACTS)
        if facts_left_out:
            body.append(_left_out(facts_left_out))
        body += map(fact_line, facts)
    if items and look.style == "prose":
        body.append(PROSE)
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(header(item, look), []).append(item)
    for title, group in sorted(groups.items(), key=lambda g: (min(i.created_at for i in g[1]), g[0])):
        body.append(title)
        body += [line(i, look) for i in sorted(group, key=lambda i: (i.session_id, i.seq, i.start))]
    text = "\n".join([OPEN_MARK, FRAME_SENTENCE, *([NEW_USER] if new_user else []), *body, CLOSE_MARK])
    return Block(text=text, tokens=budget.tokens(text), facts_left_out=facts_left_out)
