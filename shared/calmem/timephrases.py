"""Time phrases of a query, in English and Chinese, as a window in the user's zone. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from calmem import words


@dataclass(frozen=True)
class TimeView:
    """What a query says about time. `rest` is the query without the phrase.

    `told`: the phrase says when something was said ("what did I say last week"), so that nothing outside counts. Else it
    says when something happened ("our trip last year"), which may have been told later.
    """

    since: datetime | None
    until: datetime | None
    latest_first: bool
    rest: str
    told: bool = False


_NUMBERS = {
    word: number
    for number, words in enumerate(
        (
            "", "one a an 一", "two couple 二 两", "three 三", "four 四", "five 五", "six 六",
            "seven few 七", "eight 八", "nine 九", "ten 十", "eleven 十一", "twelve 十二",
        )
    )
    for word in words.split()
}  # fmt: skip
_MONTHS = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
]
_WEEKDAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
_CN_WEEKDAYS = "一二三四五六日"
# A number that long is no span of a person's life; the phrase then means nothing here.
_N = (
    r"(\d{1,4}|"
    + "|".join(sorted((re.escape(w) for w in _NUMBERS if w.isascii()), key=len, reverse=True))
    + r")(?: of)?"
)
_CN_N = "([0-9]{1,4}|十[一二]?|[一二两三四五六七八九])"
# What stands before a number and makes another number of it: "twenty two", "two or three", "a hundred and two".
_NO_PART = r"(?<![\w.,–-])" + "".join(
    f"(?<!\\b{before} )"
    for before in (
        *("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"),
        *("hundred", "thousand", "million", "and", "or", "to", "minus"),
    )
)
_M = "(" + "|".join(f"{m[:3]}(?:{m[3:]})?" if m != "may" else "may" for m in _MONTHS) + r")\.?"
_UNIT_DAYS = {"day": 1, "天": 1, "日": 1, "week": 7, "周": 7, "星期": 7, "month": 30, "月": 30, "year": 365, "年": 365}

_TELLS = re.compile(
    r"\b(?:say|says|said|saying|tell|tells|told|mention\w*|talk\w*|discuss\w*|ask|asks|asked|wrote|chat\w*|conversations?)\b"
    r"|[说聊谈讲提问]|告诉|讨论|对话",
    re.IGNORECASE,
)
_LATEST = re.compile(r"\b(?:most recent(?:ly)?|latest|last time)\b|最近一次|最近|最新|上一次|上次", re.IGNORECASE)
# "When did we …" asks for a time; a phrase in it is not where to look.
_ASKS_WHEN = re.compile(
    r"^\s*(?:when|how long|what (?:date|day|year|month|time))\b|什么时候|哪一?天|几月|几号|何时", re.IGNORECASE
)

# They stand before the phrase in English, after it in Chinese, and open the window on one side.
_BOUND = re.compile(r"\b(since|after|before|until|till) (?:the )?$", re.IGNORECASE)
_CN_BOUNDS = {"since": ("以来", "到现在", "至今", "开始"), "after": ("之后", "以后"), "before": ("之前", "以前")}
_CN_BOUND = re.compile("|".join(word for words in _CN_BOUNDS.values() for word in words))


def read(query: str, *, now: datetime, zone: ZoneInfo) -> TimeView:
    """The window and order that the query asks for; `now` is aware. A phrase that cannot be read sets nothing.

    "Last week" is the previous calendar week with the Sunday before it, so that it is right where weeks begin on a
    Monday and where they begin on a Sunday. "Three days ago" is that calendar day; weeks, months and years ago
    are as wide as their unit around that day.
    """
    asking = words.asking_part(query)
    if asking != query:
        # Times in what a long turn tells beside its question are not where to look.
        view = read(asking, now=now, zone=zone)
        return TimeView(view.since, view.until, view.latest_first, query, view.told)
    latest = _LATEST.search(query) is not None
    if _ASKS_WHEN.search(query):
        return TimeView(None, None, latest, query)
    today = now.astimezone(zone).date()
    for pattern, window in _PHRASES:
        match = pattern.search(query)
        if match is None:
            continue
        try:
            first, last = window(match, today)
            since, until = _midnight(first, zone), _midnight(last, zone)
        except (ValueError, OverflowError):
            continue
        if since >= until:
            continue
        before, after = query[: match.start()], query[match.end() :]
        open_since, open_until, before, after = _bound(since, until, before, after)
        # What is still to come was talked about before it came.
        if open_since is not None and open_since > now:
            continue
        told = _TELLS.search(query) is not None
        return TimeView(open_since, open_until, latest, f"{before} {after}".strip(), told)
    return TimeView(None, None, latest, query)


def _bound(
    since: datetime, until: datetime, before: str, after: str
) -> tuple[datetime | None, datetime | None, str, str]:
    """The window with "since", "before" and the like applied, and the query around it without them."""
    said, suffix = _BOUND.search(before), _CN_BOUND.match(after)
    if said is not None:
        before, bound = before[: said.start()], said.group(1).lower()
    elif suffix is not None:
        after, bound = after[suffix.end() :], next(b for b, words in _CN_BOUNDS.items() if suffix.group() in words)
    else:
        return since, until, before, after
    return {
        "since": (since, None, before, after),
        "after": (until, None, before, after),
        "before": (None, since, before, after),
        "until": (None, until, before, after),
        "till": (None, until, before, after),
    }[bound]


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    return datetime.combine(day, time(), zone).astimezone(UTC)


def _number(text: str) -> int:
    return int(text) if text.isdigit() else _NUMBERS[text.lower()]


def _days(first: date, count: int) -> tuple[date, date]:
    return first, first + timedelta(days=count)


def _month(year: int, month: int) -> tuple[date, date]:
    return date(year, month, 1), date(year + month // 12, month % 12 + 1, 1)


def _month_before(today: date) -> tuple[date, date]:
    return _month(today.year - (today.month == 1), (today.month - 2) % 12 + 1)


def _monday(today: date) -> date:
    return today - timedelta(days=today.weekday())


def _last_week(_: re.Match[str], today: date) -> tuple[date, date]:
    return _monday(today) - timedelta(days=8), _monday(today)


def _ago(match: re.Match[str], today: date) -> tuple[date, date]:
    unit = _UNIT_DAYS[match.group(2).lower()]
    centre = today - timedelta(days=_number(match.group(1)) * unit)
    return centre - timedelta(days=unit // 2), centre + timedelta(days=unit // 2 + 1)


def _few_ago(match: re.Match[str], today: date) -> tuple[date, date]:
    """Two to seven of the unit."""
    unit = _UNIT_DAYS[match.group(1).lower()]
    return today - timedelta(days=7 * unit), today - timedelta(days=2 * unit - 1)


def _past(match: re.Match[str], today: date) -> tuple[date, date]:
    days = _number(match.group(1)) * _UNIT_DAYS[match.group(2).lower()]
    return today - timedelta(days=days), today + timedelta(days=1)


def _weekday(day: int, today: date) -> tuple[date, date]:
    """The latest such day before today."""
    return _days(today - timedelta(days=(today.weekday() - day - 1) % 7 + 1), 1)


def _named_month(match: re.Match[str], today: date) -> tuple[date, date]:
    month = _month_no(match.group(1))
    year = int(match.group(2)) if match.group(2) else today.year - (month > today.month)
    return _month(year, month)


def _month_no(name: str) -> int:
    return next(n for n, month in enumerate(_MONTHS, 1) if month.startswith(name.lower()[:3]))


def _month_day(month: int, day: int, year: str | None, today: date) -> tuple[date, date]:
    chosen = date(int(year), month, day) if year else date(today.year, month, day)
    if not year and chosen > today:
        chosen = date(today.year - 1, month, day)
    return _days(chosen, 1)


_Window = Callable[[re.Match[str], date], tuple[date, date]]


def _fixed(days_back: int, length: int = 1) -> _Window:
    return lambda _, today: _days(today - timedelta(days=days_back), length)


# The first phrase that matches counts: longer ones stand before those they contain.
_TABLE: tuple[tuple[str, _Window], ...] = (
    (r"\bthe day before yesterday\b|(?<!大)前天", _fixed(2)),
    ("大前天", _fixed(3)),
    (r"\byesterday\b|昨[天日晚]", _fixed(1)),
    (r"\b(?:earlier )?today\b|\bthis (?:morning|afternoon|evening)\b|今[天日早晚]", _fixed(0)),
    (rf"{_NO_PART}(?:a )?(?:few|several) (day|week|month|year)s ago\b", _few_ago),
    (rf"{_NO_PART}(?:a )?{_N} (day|week|month|year)s? ago\b", _ago),
    (r"(?<!十)几个?(天|日|周|星期|月|年)(?:以)?前", _few_ago),
    (rf"(?<![0-9.,一二两三四五六七八九十百千万]){_CN_N}个?(天|日|周|星期|月|年)(?:以)?前", _ago),
    (rf"\b(?:in |over |during )?the (?:past|last) {_N} (day|week|month|year)s?\b", _past),
    (rf"(?:最近|过去)的?{_CN_N}个?(天|日|周|星期|月|年)", _past),
    (r"\b(?:on )?(\d{4})-(\d{1,2})-(\d{1,2})\b", lambda m, _: _days(date(*map(int, m.groups())), 1)),
    (r"(\d{4})年(\d{1,2})月(\d{1,2})[日号]", lambda m, _: _days(date(*map(int, m.groups())), 1)),
    (r"(\d{4})年(\d{1,2})月", lambda m, _: _month(int(m[1]), int(m[2]))),
    (r"(?<![\d年])(\d{1,2})月(\d{1,2})[日号]", lambda m, t: _month_day(int(m[1]), int(m[2]), None, t)),
    (rf"\b(?:on )?(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? {_M}(?:,? (\d{{4}}))?\b", lambda m, t: _month_day(_month_no(m[2]), int(m[1]), m[3], t)),
    (rf"\b(?:on )?{_M} (\d{{1,2}})(?:st|nd|rd|th)?(?:,? (\d{{4}}))?\b(?!\d)", lambda m, t: _month_day(_month_no(m[1]), int(m[2]), m[3], t)),
    (rf"\b(?:in|during) {_M}(?: (?:of )?(\d{{4}}))?\b", _named_month),
    (rf"\b(?:last|on) ({'|'.join(_WEEKDAYS)})\b", lambda m, t: _weekday(_WEEKDAYS.index(m[1].lower()), t)),
    (rf"(?<!上)上(?:周|星期|礼拜)([{_CN_WEEKDAYS}天])", lambda m, t: _days(_monday(t) + timedelta(days=_CN_WEEKDAYS.index(m[1].replace("天", "日")) - 7), 1)),
    (r"\blast week\b|(?<!上)上(?:个)?(?:周末?|星期|礼拜)(?![一二三四五六日天])", _last_week),
    (r"\bthis week\b|(?:这|本)(?:个)?(?:周|星期|礼拜)", lambda _, t: _days(_monday(t), 7)),
    (r"\blast month\b|(?<!上)上个?月", lambda _, t: _month_before(t)),
    (r"\bthis month\b|(?:这个|本)月", lambda _, t: _month(t.year, t.month)),
    (r"\blast year\b|去年", lambda _, t: (date(t.year - 1, 1, 1), date(t.year, 1, 1))),
    (r"\bthis year\b|今年", lambda _, t: (date(t.year, 1, 1), date(t.year + 1, 1, 1))),
)  # fmt: skip
_PHRASES = tuple((re.compile(pattern, re.IGNORECASE), window) for pattern, window in _TABLE)
