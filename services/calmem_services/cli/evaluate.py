"""`calmem eval`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from calmem.errors import InvalidInput
from calmem_services.cli import output
from calmem_services.evaluation import compare, sweeps
from calmem_services.evaluation.data import read_labelled
from calmem_services.evaluation.html import render
from calmem_services.evaluation.run import SWEPT
from calmem_services.evaluation.run import evaluate as run

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_OUT = click.Path(dir_okay=False, path_type=Path)


@click.command("eval")
@click.option("--history", required=True, type=_FILE, help="Messages, JSON Lines.")
@click.option("--queries", required=True, type=_FILE, help="Labelled queries, JSON Lines.")
@click.option("--budget", default="256,512,750,1024", show_default=True, help="Block limits in tokens.")
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1, 16), help="Worker processes.")
@click.option(
    "--sweep-threshold", is_flag=True, help="Also ask at other thresholds: what is found, what strangers get."
)
@click.option("--sweep", multiple=True, metavar="NAME=V,V", help="The same for any number that recall reads.")
@click.option("--against", type=_FILE, help="Compare with an earlier report of --json on the same data.")
@click.option("--json", "json_out", type=_OUT, help="Write the report here.")
@click.option("--per-query", is_flag=True, help="Put every query's values into --json, for later intervals.")
@click.option("--report", "html_out", type=_OUT, help="Draw the report here, as one HTML file.")
def evaluate(
    history: Path,
    queries: Path,
    budget: str,
    workers: int,
    sweep_threshold: bool,
    sweep: tuple[str, ...],
    against: Path | None,
    json_out: Path | None,
    per_query: bool,
    html_out: Path | None,
) -> None:
    """Measure recall on labelled data.

    HISTORY holds messages as in `calmem import`, each with its message_id. Of a query all six fields are needed, in one
    JSON object a line; category is yours to choose:

    {"query_id": "q1", "user_id": "mei", "query": "…", "relevant": ["m7"], "category": "…", "asked_at": "2026-02-01T09:00:00+00:00"}

    Each measure stands for the full system, and for one half of the search alone: dense (by meaning) and words. budget@N:
    evidence inside a block of N tokens. The scratch database is dropped afterwards; it
    uses the configured Postgres (its user must be allowed to create databases), or an embedded one. "strangers"
    is the share of queries that return something from the memory of another user of the history, who cannot know.
    Labelled data holds no facts, so all figures are of episodes.
    """
    _check_places(json_out, html_out)
    if per_query and json_out is None:
        raise InvalidInput("--per-query", "goes into the file of --json; name one")
    settings = output.settings()
    budgets, swept = _budgets(budget), sweeps.chosen(sweep_threshold, sweep)
    earlier = None if against is None else compare.read_report(against)
    labelled = read_labelled(history, queries, settings)
    if earlier is not None:
        compare.check_same_data(
            earlier,
            fingerprint=labelled.fingerprint,
            queries=len(labelled.queries),
            messages=len(labelled.history),
        )
    report = run(
        settings,
        labelled,
        budgets=budgets,
        workers=workers,
        sweeps=swept,
        progress=lambda line: click.echo(line, err=True),
    )
    if earlier is not None:
        report["against"] = compare.compare(earlier, report)
    _print(report)
    if html_out is not None:
        html_out.write_text(render(report), "utf-8")
    if json_out is not None:
        written = {name: value for name, value in report.items() if per_query or name != "queries_detail"}
        json_out.write_text(json.dumps(written, ensure_ascii=False, indent=2), "utf-8")


def _print(report: dict[str, Any]) -> None:
    for group, pick in _groups(report["systems"]):
        names = list(pick["full"])
        click.echo(f"\n{group}")
        output.print_table(
            [[name, *[_shown(scores[name]) for scores in pick.values()]] for name in names], ["measure", *pick]
        )
    for setting, rows in report.get("sweeps", {}).items():
        click.echo(f"\nfull system by {setting}")
        output.print_table(
            [[f"{row['value']:g}", *[_shown(row[name]) for name in SWEPT]] for row in rows], [setting, *SWEPT]
        )
    if "against" in report:
        _print_changes(report["against"])
    click.echo(f"\n{report['queries']} queries, {report['messages']} messages, {_seconds(report['seconds'])}")


def _seconds(taken: dict[str, float]) -> str:
    return ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in taken.items())


def _print_changes(against: dict[str, Any]) -> None:
    for group, pick in _groups(against):
        names = list(dict.fromkeys(name for changes in pick.values() for name in changes))
        click.echo(f"\n{group}, against the earlier report")
        output.print_table(
            [[name, *[_change(changes.get(name)) for changes in pick.values()]] for name in names], ["measure", *pick]
        )
    every = [change for _, pick in _groups(against) for changes in pick.values() for change in changes.values()]
    if any("interval" in change for change in every):
        click.echo("\n[95 % interval, paired bootstrap over the queries]; * it leaves out 0")
    else:
        click.echo("\nNo intervals: the earlier report holds no values per query (--per-query).")


def _groups(systems: dict[str, Any]) -> list[tuple[str, dict[str, dict[str, Any]]]]:
    """Overall and each category, each with its values by system."""
    groups = [("overall", {name: system["overall"] for name, system in systems.items()})]
    categories = dict.fromkeys(category for system in systems.values() for category in system["by_category"])
    for category in categories:
        groups.append((category, {name: system["by_category"].get(category, {}) for name, system in systems.items()}))
    return groups


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _change(change: dict[str, Any] | None) -> str:
    if change is None:
        return "–"
    text = f"{change['before']:.3f} → {change['now']:.3f}  {change['difference']:+.3f}"
    if "interval" not in change:
        return text
    low, high = change["interval"]
    return f"{text} [{low:+.3f}, {high:+.3f}]{'*' if change['significant'] else ''}"


def _check_places(json_out: Path | None, html_out: Path | None) -> None:
    for option, path in (("--json", json_out), ("--report", html_out)):
        if path is not None and not path.parent.is_dir():
            raise InvalidInput(option, f"{path.parent} is not a directory")
    if html_out is not None and html_out.suffix.lower() not in (".html", ".htm"):
        raise InvalidInput("--report", f"{html_out.name} must end in .html: the report is drawn as HTML only")


def _budgets(text: str) -> list[int]:
    try:
        budgets = [int(one) for one in text.split(",")]
    except ValueError as exc:
        raise InvalidInput("--budget", "must be whole numbers, such as 256,512,750") from exc
    if not budgets or min(budgets) < 1:
        raise InvalidInput("--budget", "must be numbers of 1 or more")
    return budgets
