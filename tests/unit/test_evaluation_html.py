"""The drawn report: well-formed, self-contained, every number also as text, for eyes and for screen readers."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest

from calmem_services.evaluation.charts import Point, bars, lines
from calmem_services.evaluation.html import render

SVG = "{http://www.w3.org/2000/svg}"
_VOID = {"meta"}


def report(**more: Any) -> dict[str, Any]:
    measures = {"recall@5": 0.5, "mrr": 0.25, "budget@1024": 0.875, "budget@256": 0.125, "strangers": None}
    systems = {
        name: {"overall": measures, "by_category": {"a <b> & c": measures}} for name in ("full", "dense", "words")
    }
    return {"systems": systems, "queries": 1155, "messages": 9, "seconds": {"ask": 1.5}} | more


class _Page(HTMLParser):
    """The page's text, its open elements, and the attributes of all."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def figures(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(one) for one in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def change(**more: Any) -> dict[str, Any]:
    return {"mrr": {"before": 0.25, "now": 0.5, "difference": 0.25} | more}


def test_the_page_is_well_formed_and_loads_nothing() -> None:
    page = render(report())
    read = _Page(page)
    assert read.open == []
    loading = [value for name, value in read.attributes if name in ("src", "href", "xlink:href")]
    assert loading == []
    assert "url(" not in page
    assert "@import" not in page


def test_every_chart_has_a_title_and_its_numbers_in_words() -> None:
    charts = figures(render(report()))
    assert len(charts) == 3  # side by side, by budget, and one category
    for chart in charts:
        assert chart.get("role") == "img"
        named = (chart.get("aria-labelledby") or "").split()
        texts = {one.get("id"): one.text for one in chart.iter() if one.get("id")}
        assert len(named) == 2
        assert all(texts[name] for name in named)
        assert "budget@1024 0.875" in (texts[named[1]] or "") or "recall@5 0.500" in (texts[named[1]] or "")


def test_ids_are_unique() -> None:
    rows = [{"value": 0.2, "recall@5": 0.5, "strangers": 1.0}, {"value": 0.4, "recall@5": 0.25, "strangers": 0.5}]
    page = render(report(sweeps={"min_cosine": rows, "candidates": rows}))
    ids = [value for name, value in _Page(page).attributes if name == "id"]
    assert len(ids) == len(set(ids)) == 2 * (3 + 2 * 2)


def test_names_are_escaped() -> None:
    page = render(report())
    assert "a <b>" not in page
    assert "a &lt;b&gt; &amp; c" in page


def test_a_measure_without_value_is_a_dash() -> None:
    assert '<th scope="row">strangers</th><td>–</td><td>–</td><td>–</td>' in render(report())


def test_a_sweep_of_one_user_has_no_curve_of_strangers() -> None:
    rows = [{"value": 0.2, "recall@5": 0.5, "strangers": None}, {"value": 0.4, "recall@5": 0.25, "strangers": None}]
    assert len(figures(render(report(sweeps={"min_cosine": rows})))) == 3 + 1


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        ({}, ["+0.250", "–"]),
        ({"interval": [0.1, 0.375], "significant": True}, ["+0.100 to +0.375", "beyond chance"]),
    ],
)
def test_changes_are_a_table(more: dict[str, Any], shown: list[str]) -> None:
    against = {"full": {"overall": change(**more), "by_category": {}}}
    text = _Page(render(report(against=against))).text
    assert set(shown) <= set(text)


def test_lines_place_points_by_value() -> None:
    points = [Point(x=0, y=0.0), Point(x=5, y=0.5), Point(x=10, y=1.0)]
    chart = ElementTree.fromstring(
        lines(name="n", title="t", description="d", x_label="x", series={"one": points}, width=466, height=280)
    )
    # Inside margins of 44 and 22 px on the sides, 34 px above and 46 px below: 400 px by 200 px.
    line = next(chart.iter(f"{SVG}polyline"))
    assert line.get("points") == "44.0,234.0 244.0,134.0 444.0,34.0"


def test_bars_are_as_long_as_their_values() -> None:
    chart = ElementTree.fromstring(
        bars(name="n", title="t", description="d", groups={"g": {"one": 1.0, "two": 0.25, "three": None}})
    )
    drawn = [float(one.get("width") or 0) for one in chart.iter(f"{SVG}rect") if "bar" in (one.get("class") or "")]
    assert len(drawn) == 2
    assert drawn[1] == pytest.approx(drawn[0] / 4, abs=0.1)


def test_a_single_value_is_drawn() -> None:
    chart = lines(name="n", title="t", description="d", x_label="x", series={"one": [Point(x=750, y=0.5)]})
    assert "750" in [one.text for one in ElementTree.fromstring(chart).iter(f"{SVG}text")]
