"""Charts of shares between 0 and 1 as inline SVG. Pure; colours and fonts are the page's, by class."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

# How many series can be told apart: colour, dash and mark change together.
MOST_SERIES = 4
_LETTER = 7.2  # width of one at 12 px, for room only
_TICKS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True, kw_only=True)
class Point:
    """`label` is written beside the point when there is one."""

    x: float
    y: float
    label: str = ""


def lines(
    *,
    name: str,
    title: str,
    description: str,
    x_label: str,
    series: Mapping[str, Sequence[Point]],
    width: int = 720,
    height: int = 380,
    shares: bool = False,
) -> str:
    """A line for each of up to MOST_SERIES series over a numeric axis, from 0 in tenths when that holds `shares`.

    `name`: unique on the page.
    """
    legend, rows = _legend(series, width)
    left, right, top, bottom = 44, 22, 14 + 20 * rows, 46
    ticks = sorted({point.x for points in series.values() for point in points})
    if shares:
        ticks = [tenth / 10 for tenth in range(math.ceil(ticks[-1] * 10 - 1e-9) + 1)]
    low, high = ticks[0], ticks[-1]
    span = high - low or 1.0
    wide, high_px = width - left - right, height - top - bottom

    def at(point: Point) -> tuple[float, float]:
        return left + (point.x - low) / span * wide, top + (1 - point.y) * high_px

    parts = list(legend)
    for tick in _TICKS:
        y = top + (1 - tick) * high_px
        parts.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(left - 7, y + 4, f"{tick:.1f}", anchor="end"))
    for tick in _spread_out(ticks, low, span, wide):
        parts.append(_text(left + (tick - low) / span * wide, height - bottom + 18, f"{tick:g}", anchor="middle"))
    parts.append(_text(left + wide / 2, height - 8, x_label, anchor="middle", kind="axis"))
    for place, (label, points) in enumerate(series.items()):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(at, points))
        parts.append(f'<polyline class="line s{place}" points="{path}"/>')
        for point in points:
            x, y = at(point)
            parts.append(_mark(place, x, y, f"{label}, {point.label or format(point.x, 'g')}: {point.y:.3f}"))
            if point.label:
                # Below the first line, above the others: two lines often run close.
                parts.append(_text(x, y - 10 if place else y + 20, point.label, anchor="middle"))
    return _figure(name, title, description, width, height, parts)


def bars(*, name: str, title: str, description: str, groups: Mapping[str, Mapping[str, float | None]]) -> str:
    """A group of lying bars for each key of `groups`, a bar in it for each of up to MOST_SERIES series."""
    width, thick, gap = 720, 16, 14
    names = list(dict.fromkeys(series for values in groups.values() for series in values))
    legend, rows = _legend(names, width)
    left, right, top = 12 + int(_LETTER * max(min(len(group), 24) for group in groups)), 44, 14 + 20 * rows
    wide = width - left - right
    height = top + len(groups) * (thick * len(names) + gap) + 24
    parts = list(legend)
    for tick in _TICKS:
        x = left + tick * wide
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{height - 26}"/>')
        parts.append(_text(x, height - 8, f"{tick:.1f}", anchor="middle"))
    y = top + gap / 2
    for group, values in groups.items():
        parts.append(_text(left - 8, y + thick * len(names) / 2 + 4, _short(group), anchor="end"))
        for place, series in enumerate(names):
            value = values.get(series)
            if value is not None:
                tip = f"<title>{escape(group)}, {escape(series)}: {value:.3f}</title>"
                box = f'x="{left}" y="{y + 1:.1f}" width="{value * wide:.1f}" height="{thick - 2}"'
                parts.append(f'<rect class="bar s{place}" {box}>{tip}</rect>')
            shown = "–" if value is None else f"{value:.3f}"
            parts.append(_text(left + (value or 0.0) * wide + 5, y + thick - 4, shown))
            y += thick
        y += gap
    return _figure(name, title, description, width, height, parts)


def _figure(name: str, title: str, description: str, width: int, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg role="img" aria-labelledby="{name}-title {name}-desc" viewBox="0 0 {width} {height}" '
        f'style="min-width:{width * 3 // 4}px;max-width:{width}px" xmlns="http://www.w3.org/2000/svg">\n'
        f'<title id="{name}-title">{escape(title)}</title>\n<desc id="{name}-desc">{escape(description)}</desc>\n'
        + "\n".join(parts)
        + "\n</svg>"
    )


def _legend(names: Mapping[str, object] | Sequence[str], width: int) -> tuple[list[str], int]:
    """The legend's elements, and the rows of 20 px that it takes."""
    parts, x, row = [], 14.0, 0
    for place, name in enumerate(names):
        room = 30 + _LETTER * len(name) + 18
        if x > 14 and x + room > width:
            x, row = 14.0, row + 1
        y = 16 + 20 * row
        parts.append(f'<line class="line s{place}" x1="{x:.0f}" x2="{x + 24:.0f}" y1="{y - 4}" y2="{y - 4}"/>')
        parts.append(_mark(place, x + 12, y - 4))
        parts.append(_text(x + 30, y, name))
        x += room
    return parts, row + 1


def _mark(place: int, x: float, y: float, tip: str = "") -> str:
    inside = f"<title>{escape(tip)}</title>" if tip else ""
    if place == 0:
        return f'<circle class="mark s0" cx="{x:.1f}" cy="{y:.1f}" r="4">{inside}</circle>'
    if place == 1:
        return f'<rect class="mark s1" x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7">{inside}</rect>'
    up = -1 if place == 2 else 1
    corners = f"{x:.1f},{y + up * 5:.1f} {x - 5:.1f},{y - up * 4:.1f} {x + 5:.1f},{y - up * 4:.1f}"
    return f'<polygon class="mark s{place}" points="{corners}">{inside}</polygon>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", kind: str = "label") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _short(text: str) -> str:
    return text if len(text) <= 24 else text[:23] + "…"


def _spread_out(ticks: Sequence[float], low: float, span: float, wide: float) -> Iterator[float]:
    """Those ticks whose labels do not run into the one before."""
    free = -math.inf
    for tick in ticks:
        middle, half = (tick - low) / span * wide, _LETTER * len(f"{tick:g}") / 2
        if middle - half >= free:
            yield tick
            free = middle + half + 8
