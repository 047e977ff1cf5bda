"""A report of `calmem eval` as one HTML file that needs nothing else: charts, and every number as a table. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from calmem_services.evaluation.charts import Point, bars, lines

_BUDGET = "budget@"
_SIDE_BY_SIDE = ("recall@5", "precision@5", "hit@5", "mrr", "budget@750", "strangers")
_STRANGERS = (
    "“strangers” is the share of queries that return something from the memory of another user, who cannot know: "
    "lower is better. All else is better when higher."
)
_STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #1c2024; --soft: #5b6570; --rule: #dde1e6; --band: #f4f6f8;
  --s0: #0b62c4; --s1: #b3470b; --s2: #1d7a4a; --s3: #8a3fa0; }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --ink: #e8ebee; --soft: #a3adb8; --rule: #343b43;
  --band: #1d2227; --s0: #6cb0ff; --s1: #ff9f5c; --s2: #5fd39a; --s3: #d79bea; } }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 72rem; background: var(--page); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; } h3 { font-size: 1rem; }
p { max-width: 46rem; } .soft { color: var(--soft); } figure { margin: 1rem 0; overflow-x: auto; }
figcaption { font-weight: 600; margin-bottom: .25rem; } svg { display: block; width: 100%; height: auto; }
.grid { stroke: var(--rule); } .label { fill: var(--ink); font-size: 12px; } .axis { fill: var(--soft); font-size: 12px; }
.line { fill: none; stroke-width: 2; } .mark { stroke: var(--page); stroke-width: 1; }
.line.s1 { stroke-dasharray: 7 4; } .line.s2 { stroke-dasharray: 2 3; } .line.s3 { stroke-dasharray: 9 3 2 3; }
.line.s0 { stroke: var(--s0); } .line.s1 { stroke: var(--s1); } .line.s2 { stroke: var(--s2); } .line.s3 { stroke: var(--s3); }
.bar.s0, .mark.s0 { fill: var(--s0); } .bar.s1, .mark.s1 { fill: var(--s1); } .bar.s2, .mark.s2 { fill: var(--s2); }
.bar.s3, .mark.s3 { fill: var(--s3); }
.many { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(22.5rem, 100%), 1fr)); gap: 1rem; } .many figure { margin: 0; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
caption { text-align: left; font-weight: 600; padding: .25rem 0; }
th, td { padding: .2rem .8rem .2rem .4rem; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap; }
th:first-child { text-align: left; } thead th { color: var(--soft); } tbody tr:nth-child(even) { background: var(--band); }
details { margin: .75rem 0; } summary { cursor: pointer; } :focus-visible { outline: 2px solid var(--s0); outline-offset: 2px; }
"""


def render(report: Mapping[str, Any]) -> str:
    """The page of one report, with its sweeps and its comparison when it has them."""
    body = "\n".join([*_head(report), *_systems(report), *_budgets(report), *_sweeps(report), *_against(report)])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>calmem evaluation</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _head(report: Mapping[str, Any]) -> Iterator[str]:
    seconds = ", ".join(f"{name} {value:g} s" for name, value in report["seconds"].items())
    yield "<h1>calmem evaluation</h1>"
    yield f'<p class="soft">{report["queries"]:,} queries on {report["messages"]:,} messages. {escape(seconds)}.</p>'


def _systems(report: Mapping[str, Any]) -> Iterator[str]:
    overall = {name: system["overall"] for name, system in report["systems"].items()}
    measures = list(next(iter(overall.values())))
    shown = [name for name in _SIDE_BY_SIDE if name in measures]
    yield "<h2>Systems side by side</h2>"
    yield f"<p>The full system beside each arm of its search alone. {_STRANGERS}</p>"
    yield _figure(
        "Overall, by measure",
        bars(
            name="systems",
            title="Measures of each system over all queries",
            description=_told({name: {key: overall[name][key] for key in shown} for name in overall}),
            groups={key: {name: overall[name][key] for name in overall} for key in shown},
        ),
    )
    yield _table("All queries", ["measure", *overall], [[key, *_cells(overall, key)] for key in measures])


def _budgets(report: Mapping[str, Any]) -> Iterator[str]:
    systems = report["systems"]
    names = _budget_names(next(iter(systems.values()))["overall"])
    if not names:
        return
    axis = "limit of the block, tokens"
    yield "<h2>Evidence recall by budget</h2>"
    yield "<p>Share of the relevant messages that are in a block of at most so many tokens, its frame included.</p>"
    overall = {name: system["overall"] for name, system in systems.items()}
    yield _figure("All queries", _curve("budget", "all queries", axis, overall, names))
    yield "<h2>By category</h2>"
    categories = list(next(iter(systems.values()))["by_category"])
    picked = {one: {name: system["by_category"][one] for name, system in systems.items()} for one in categories}
    small = (
        _figure(one, _curve(f"category-{n}", one, axis, picked[one], names, width=360, height=250))
        for n, one in enumerate(categories)
    )
    yield f'<div class="many">{"".join(small)}</div>'
    for one, of_systems in picked.items():
        rows = [[key, *_cells(of_systems, key)] for key in next(iter(of_systems.values()))]
        yield f"<details><summary>Numbers: {escape(one)}</summary>{_table(one, ['measure', *of_systems], rows)}</details>"


def _curve(
    name: str,
    what: str,
    axis: str,
    systems: Mapping[str, Mapping[str, float | None]],
    budgets: Sequence[str],
    width: int = 720,
    height: int = 380,
) -> str:
    return lines(
        name=name,
        title=f"Evidence recall by budget, {what}",
        description=_told({system: {key: measures[key] for key in budgets} for system, measures in systems.items()}),
        x_label=axis,
        series={
            system: [Point(x=_tokens(key), y=value) for key in budgets if (value := measures[key]) is not None]
            for system, measures in systems.items()
        },
        width=width,
        height=height,
    )


def _sweeps(report: Mapping[str, Any]) -> Iterator[str]:
    for setting, rows in report.get("sweeps", {}).items():
        measures = [key for key in rows[0] if key != "value" and rows[0][key] is not None]
        yield f"<h2>Full system by <code>{escape(setting)}</code></h2>"
        yield f"<p>{_STRANGERS}</p>"
        by_value = {f"{row['value']:g}": {key: row[key] for key in measures} for row in rows}
        yield _figure(
            f"Each measure by {setting}",
            lines(
                name=f"sweep-{setting}",
                title=f"Measures by {setting}",
                description=_told(by_value),
                x_label=setting,
                series={key: [Point(x=row["value"], y=row[key]) for row in rows] for key in measures},
            ),
        )
        if "strangers" in measures:
            yield _figure(
                f"What is found against what strangers get, a point per value of {setting}",
                lines(
                    name=f"trade-{setting}",
                    title=f"Recall against the share of strangers answered, by {setting}",
                    description=_told(by_value),
                    x_label="share of strangers’ queries that return something (less is better)",
                    series={
                        key: _labelled([(row["strangers"], row[key], f"{row['value']:g}") for row in rows])
                        for key in measures
                        if key != "strangers"
                    },
                    shares=True,
                ),
            )
        keys = [key for key in rows[0] if key != "value"]
        yield _table(
            f"Full system by {setting}",
            [setting, *keys],
            [[f"{row['value']:g}", *[_number(row[key]) for key in keys]] for row in rows],
        )


def _labelled(points: Sequence[tuple[float, float, str]]) -> list[Point]:
    """Points in the order of x; the first and last value, and those that stand clear of the one labelled before."""
    chosen: list[Point] = []
    labelled: tuple[float, float] | None = None
    for n, (x, y, label) in enumerate(points):
        clear = labelled is None or abs(x - labelled[0]) > 0.06
        chosen.append(Point(x=x, y=y, label=label if clear or n == 0 else ""))
        labelled = (x, y) if clear else labelled
    return sorted(chosen, key=lambda point: point.x)


def _against(report: Mapping[str, Any]) -> Iterator[str]:
    if "against" not in report:
        return
    yield "<h2>Against the earlier report</h2>"
    yield (
        "<p>Now less before. Intervals are 95 % of a paired bootstrap over the queries; “beyond chance” marks those that "
        "leave out 0. Without values per query in both reports there are none.</p>"
    )
    for system, groups in report["against"].items():
        for group, changes in {"overall": groups["overall"], **groups["by_category"]}.items():
            header = ["measure", "before", "now", "difference", "95 % interval", ""]
            table = _table(f"{system}, {group}", header, [_change(key, change) for key, change in changes.items()])
            is_open = " open" if (system, group) == (next(iter(report["against"])), "overall") else ""
            yield f"<details{is_open}><summary>{escape(system)}, {escape(group)}</summary>{table}</details>"


def _change(name: str, change: Mapping[str, Any]) -> list[str]:
    low_high = change.get("interval")
    return [
        name,
        _number(change["before"]),
        _number(change["now"]),
        f"{change['difference']:+.3f}",
        "–" if low_high is None else f"{low_high[0]:+.3f} to {low_high[1]:+.3f}",
        "beyond chance" if change.get("significant") else "",
    ]


def _figure(caption: str, svg: str) -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>{svg}</figure>"


def _table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' if cell else "<td></td>" for cell in header)
    lines_ = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(caption)}"><table><caption>{escape(caption)}'
        f"</caption><thead><tr>{head}</tr></thead><tbody>{lines_}</tbody></table></div>"
    )


def _told(rows: Mapping[str, Mapping[str, float | None]]) -> str:
    """The numbers of a chart in words, for those who do not see it."""
    return ". ".join(
        f"{name}: " + ", ".join(f"{key} {_number(value)}" for key, value in values.items())
        for name, values in rows.items()
    )


def _cells(systems: Mapping[str, Mapping[str, float | None]], measure: str) -> list[str]:
    return [_number(measures.get(measure)) for measures in systems.values()]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _budget_names(measures: Mapping[str, object]) -> list[str]:
    return sorted((name for name in measures if name.startswith(_BUDGET)), key=_tokens)


def _tokens(name: str) -> int:
    return int(name.removeprefix(_BUDGET))
