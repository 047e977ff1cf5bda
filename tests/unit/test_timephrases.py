"""Time phrases against a calendar. Dates in the tables are first and last day, both included, in the user's zone.

May 2025                June 2025
Mo Tu We Th Fr Sa Su    Mo Tu We Th Fr Sa Su
          1  2  3  4                       1
 5  6  7  8  9 10 11     2  3  4  5  6  7  8
12 13 14 15 16 17 18     9 10 11 12 13 14 15
19 20 21 22 23 24 25    16 17 18 19 20 21 22
26 27 28 29 30 31       23 24 25 26 27 28 29
                        30
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calmem.timephrases import TimeView, read

TUESDAY = datetime(2025, 6, 10, 12, tzinfo=UTC)


def view(query: str, now: datetime = TUESDAY, zone: str = "UTC") -> TimeView:
    return read(query, now=now, zone=ZoneInfo(zone))


def days(query: str, now: datetime = TUESDAY, zone: str = "UTC") -> tuple[str | None, str | None]:
    """First and last day of the window, in the user's zone; None is an open side."""
    seen = view(query, now, zone)
    ends = [None if end is None else end.astimezone(ZoneInfo(zone)) for end in (seen.since, seen.until)]
    first, after = ends
    assert {end.time() for end in ends if end is not None} <= {time()}
    last = None if after is None else after.date() - timedelta(days=1)
    return None if first is None else first.date().isoformat(), None if last is None else last.isoformat()


@pytest.mark.parametrize(
    ("query", "first", "last"),
    [
        ("what did we eat today", "2025-06-10", "2025-06-10"),
        ("what did I say this morning", "2025-06-10", "2025-06-10"),
        ("Yesterday's plan", "2025-06-09", "2025-06-09"),
        ("the day before yesterday", "2025-06-08", "2025-06-08"),
        ("three days ago", "2025-06-07", "2025-06-07"),
        ("10 days ago", "2025-05-31", "2025-05-31"),
        ("a day ago", "2025-06-09", "2025-06-09"),
        ("a couple of days ago", "2025-06-08", "2025-06-08"),
        ("a few days ago", "2025-06-03", "2025-06-08"),
        ("two weeks ago", "2025-05-24", "2025-05-30"),
        ("a month ago", "2025-04-26", "2025-05-26"),
        ("the past three days", "2025-06-07", "2025-06-10"),
        ("over the last 2 weeks", "2025-05-27", "2025-06-10"),
        ("in the last few days", "2025-06-03", "2025-06-10"),
        ("last week", "2025-06-01", "2025-06-08"),
        ("this week", "2025-06-09", "2025-06-15"),
        ("last month", "2025-05-01", "2025-05-31"),
        ("this month", "2025-06-01", "2025-06-30"),
        ("last year", "2024-01-01", "2024-12-31"),
        ("this year", "2025-01-01", "2025-12-31"),
        ("last Monday", "2025-06-09", "2025-06-09"),
        ("on Tuesday", "2025-06-03", "2025-06-03"),
        ("last Wednesday", "2025-06-04", "2025-06-04"),
        ("on sunday", "2025-06-08", "2025-06-08"),
        ("in March", "2025-03-01", "2025-03-31"),
        ("in July", "2024-07-01", "2024-07-31"),
        ("in June", "2025-06-01", "2025-06-30"),
        ("during Feb. 2024", "2024-02-01", "2024-02-29"),
        ("in December 2023", "2023-12-01", "2023-12-31"),
        ("on May 3", "2025-05-03", "2025-05-03"),
        ("May 3rd, 2024", "2024-05-03", "2024-05-03"),
        ("on the 3rd of May", "2025-05-03", "2025-05-03"),
        ("12 August", "2024-08-12", "2024-08-12"),
        ("on 2025-05-31", "2025-05-31", "2025-05-31"),
        ("on 2024-02-29", "2024-02-29", "2024-02-29"),
    ],
)
def test_english(query: str, first: str, last: str) -> None:
    assert days(query) == (first, last)
    assert days(query.upper()) == (first, last)


@pytest.mark.parametrize(
    ("query", "first", "last"),
    [
        ("今天早上说了什么", "2025-06-10", "2025-06-10"),
        ("昨晚吃了什么", "2025-06-09", "2025-06-09"),
        ("前天的会议", "2025-06-08", "2025-06-08"),
        ("大前天的会议", "2025-06-07", "2025-06-07"),
        ("三天前", "2025-06-07", "2025-06-07"),
        ("十二天以前", "2025-05-29", "2025-05-29"),
        ("10天前", "2025-05-31", "2025-05-31"),
        ("几天前", "2025-06-03", "2025-06-08"),
        ("两周前", "2025-05-24", "2025-05-30"),
        ("一个月前", "2025-04-26", "2025-05-26"),
        ("过去两周", "2025-05-27", "2025-06-10"),
        ("最近三天", "2025-06-07", "2025-06-10"),
        ("上周花园怎么样", "2025-06-01", "2025-06-08"),
        ("上个星期", "2025-06-01", "2025-06-08"),
        ("上周末", "2025-06-01", "2025-06-08"),
        ("上周三", "2025-06-04", "2025-06-04"),
        ("上星期天", "2025-06-08", "2025-06-08"),
        ("上礼拜一", "2025-06-02", "2025-06-02"),
        ("这周", "2025-06-09", "2025-06-15"),
        ("本周", "2025-06-09", "2025-06-15"),
        ("上个月", "2025-05-01", "2025-05-31"),
        ("这个月", "2025-06-01", "2025-06-30"),
        ("去年", "2024-01-01", "2024-12-31"),
        ("今年", "2025-01-01", "2025-12-31"),
        ("2024年2月", "2024-02-01", "2024-02-29"),
        ("2024年2月29日", "2024-02-29", "2024-02-29"),
        ("5月3号", "2025-05-03", "2025-05-03"),
        ("12月31日", "2024-12-31", "2024-12-31"),
    ],
)
def test_chinese(query: str, first: str, last: str) -> None:
    assert days(query) == (first, last)


@pytest.mark.parametrize(
    ("query", "first", "last"),
    [
        ("what have I eaten since last week", "2025-06-01", None),
        ("since the day before yesterday", "2025-06-08", None),
        ("after 2025-05-31", "2025-06-01", None),
        ("anything from before yesterday", None, "2025-06-08"),
        ("what did I plan before last month", None, "2025-04-30"),
        ("until last Monday", None, "2025-06-09"),
        ("2 days before yesterday", None, "2025-06-08"),
        ("上周以来", "2025-06-01", None),
        ("去年到现在", "2024-01-01", None),
        ("5月3日以后", "2025-05-04", None),
        ("昨天之前", None, "2025-06-08"),
    ],
)
def test_since_and_before_open_the_window_on_one_side(query: str, first: str | None, last: str | None) -> None:
    assert days(query) == (first, last)


@pytest.mark.parametrize(
    "query",
    [
        "",
        "what happened 100,000 years ago",
        "100000 years ago",
        "9999 years ago",
        "1.5 years ago",
        "ten thousand years ago",
        "one hundred and two days ago",
        "twenty two days ago",
        "twenty-two days ago",
        "two or three days ago",
        "2-3 weeks ago",
        "minus three days ago",
        "-3 days ago",
        "in the last 20000 days",
        "on February 30",
        "2025-02-30",
        "2025-13-01",
        "2025-05-011",
        "0000-01-01",
        "on 31 December 9999",
        "in December 9999",
        "next week",
        "the flight on 2025-12-24",
        "what is planned for May 3, 2026",
        "in July 2025",
        "the week before last",
        "two weeks from now",
        "May I ask something",
        "十万年前",
        "两千三百年前",
        "二十天前",
        "十几天前",
        "两三天前",
        "13月1日",
        "2月30日",
        "9999年12月31日",
        "2026年3月1日",
        "上上周",
        "上上周三",
        "上上个月",
        "下周",
    ],
)
def test_what_cannot_be_read_or_is_still_to_come_sets_nothing(query: str) -> None:
    assert days(query) == (None, None)
    assert view(query).rest == query


def test_a_day_that_is_not_in_its_month_leaves_the_month() -> None:
    assert days("2025年2月30日") == ("2025-02-01", "2025-02-28")


@pytest.mark.parametrize(
    "query", ["when did I go there last week", "How long ago was last month", "我上周什么时候去的", "昨天是几号"]
)
def test_a_question_for_the_time_is_not_narrowed_by_its_own_phrase(query: str) -> None:
    assert days(query) == (None, None)
    assert view(query).rest == query


@pytest.mark.parametrize(
    ("query", "rest"),
    [
        ("what did I say about the garden last week", "what did I say about the garden"),
        ("since yesterday the gate squeaks", "the gate squeaks"),
        ("上周花园怎么样", "花园怎么样"),
        ("5月3日以后的会议", "的会议"),
        ("the garden", "the garden"),
    ],
)
def test_the_rest_is_the_query_without_the_phrase(query: str, rest: str) -> None:
    assert view(query).rest == rest


@pytest.mark.parametrize(
    ("query", "latest"),
    [
        ("my most recent hike", True),
        ("the LATEST plan", True),
        ("last time we met", True),
        ("最近一次旅行", True),
        ("上次说的", True),
        ("最新的版本", True),
        ("the last straw", False),
        ("recently", False),
        ("latestone", False),
    ],
)
def test_latest_orders_without_narrowing(query: str, latest: bool) -> None:
    assert view(query).latest_first == latest
    assert days(query) == (None, None)


def test_the_day_is_the_users() -> None:
    """19:00 UTC on Sunday 8 June is 03:00 on Monday in Shanghai and noon on Sunday in Los Angeles."""
    now = datetime(2025, 6, 8, 19, tzinfo=UTC)
    assert days("yesterday", now, "Asia/Shanghai") == ("2025-06-08", "2025-06-08")
    assert days("yesterday", now, "America/Los_Angeles") == ("2025-06-07", "2025-06-07")
    assert days("last week", now, "Asia/Shanghai") == ("2025-06-01", "2025-06-08")
    assert days("last week", now, "America/Los_Angeles") == ("2025-05-25", "2025-06-01")
    shanghai = view("yesterday", now, "Asia/Shanghai")
    assert shanghai.since == datetime(2025, 6, 7, 16, tzinfo=UTC)
    assert shanghai.until == datetime(2025, 6, 8, 16, tzinfo=UTC)
    assert shanghai.since.tzinfo is UTC


@pytest.mark.parametrize(
    ("now", "first"),
    [("2025-06-08T23:59:59+00:00", "2025-05-25"), ("2025-06-09T00:00:00+00:00", "2025-06-01")],
    ids=["the last second of Sunday", "the first of Monday"],
)
def test_a_week_ends_with_its_sunday(now: str, first: str) -> None:
    assert days("last week", datetime.fromisoformat(now))[0] == first
    assert days("上周", datetime.fromisoformat(now))[0] == first


@pytest.mark.parametrize(
    ("query", "now", "first", "last"),
    [
        ("last month", "2025-01-15", "2024-12-01", "2024-12-31"),
        ("yesterday", "2024-03-01", "2024-02-29", "2024-02-29"),
        ("last week", "2025-01-01", "2024-12-22", "2024-12-29"),
        ("this month", "2024-12-31", "2024-12-01", "2024-12-31"),
        ("on 29 February", "2024-06-10", "2024-02-29", "2024-02-29"),
    ],
)
def test_the_ends_of_months_and_years(query: str, now: str, first: str, last: str) -> None:
    assert days(query, datetime.fromisoformat(f"{now}T12:00:00+00:00")) == (first, last)


@pytest.mark.parametrize(
    ("zone", "day", "begins", "ends"),
    [
        ("Europe/Berlin", date(2025, 3, 30), "2025-03-29T23:00:00", "2025-03-30T22:00:00"),  # 23 hours
        ("America/New_York", date(2025, 11, 2), "2025-11-02T04:00:00", "2025-11-03T05:00:00"),  # 25 hours
        ("America/Santiago", date(2025, 9, 7), "2025-09-07T04:00:00", "2025-09-08T03:00:00"),  # begins at 01:00
    ],
)
def test_a_day_is_as_long_as_it_was(zone: str, day: date, begins: str, ends: str) -> None:
    noon_after = datetime.combine(day + timedelta(days=1), time(12), ZoneInfo(zone))
    seen = view("yesterday", noon_after, zone)
    assert seen.since == datetime.fromisoformat(f"{begins}+00:00")
    assert seen.until == datetime.fromisoformat(f"{ends}+00:00")


def test_a_day_that_never_was_sets_nothing() -> None:
    """Samoa went from 29 to 31 December 2011."""
    assert days("yesterday", datetime(2011, 12, 31, 0, tzinfo=UTC), "Pacific/Apia") == (None, None)


_WORDS = ["last", "week", "ago", "since", "before", "two", "9999", "days", "years", "2025-05-01", "3", "in", "May"]
_CN_WORDS = ["上", "周", "三", "天", "前", "以后", "最近", "2025年", "2月", "30日", "去年"]


@given(
    st.lists(st.sampled_from([*_WORDS, *_CN_WORDS, " ", " ", "the"])).map("".join) | st.text(),
    st.integers(-2_000_000_000, 7_000_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
    st.sampled_from(["UTC", "Asia/Shanghai", "America/Los_Angeles", "Pacific/Apia"]).map(ZoneInfo),
)
def test_any_query_gives_a_window_that_holds_time_or_none(query: str, now: datetime, zone: ZoneInfo) -> None:
    seen = read(query, now=now, zone=zone)
    assert seen.since is None or seen.since <= now
    assert seen.since is None or seen.until is None or seen.since < seen.until
    if seen.since is seen.until is None:
        assert seen.rest == query


def test_a_time_told_beside_the_question_of_a_long_chinese_turn_sets_nothing() -> None:
    told = "今天天气真好。昨天我跟你说去了书店。我用的手机是什么牌子的？"
    assert view(told) == TimeView(None, None, False, told)
    assert days("天气真好。我在书店买了书。昨天我去了哪家书店？") == ("2025-06-09", "2025-06-09")
