"""`calmem eval`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from calmem.errors import InvalidInput
from calmem_services.cli import output
from calmem_services.evaluation.run import evaluate as run

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("eval")
@click.option("--history", required=True, type=_FILE, help="Messages, JSON Lines.")
@click.option("--queries", required=True, type=_FILE, help="Labelled queries, JSON Lines.")
@click.option("--budget", default="256,512,750,1024", show_default=True, help="Block limits in tokens.")
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1, 16), help="Worker processes.")
@click.option("--json", "json_out", type=click.Path(dir_okay=False, path_type=Path), help="Write the report here.")
def evaluate(history: Path, queries: Path, budget: str, workers: int, json_out: Path | None) -> None:
    """Measure recall on labelled data, in a scratch database that is dropped afterwards.

    Uses the configured Postgres (its user must be allowed to create databases), or an embedded one.
    """
    if json_out is not None and not json_out.parent.is_dir():
        raise InvalidInput("--json", f"{json_out.parent} is not a directory")
    report = run(
        output.settings(),
        history=history,
        queries=queries,
        budgets=_budgets(budget),
        workers=workers,
        progress=lambda line: click.echo(line, err=True),
    )
    for group, pick in _groups(report):
        names = list(pick["full"])
        click.echo(f"\n{group}")
        output.print_table(
            [[system, *[f"{scores[n]:.3f}" for n in names]] for system, scores in pick.items()], ["system", *names]
        )
    click.echo(f"\n{report['queries']} queries, {report['messages']} messages, seconds {report['seconds']}")
    if json_out is not None:
        json_out.write_text(json.dumps(report, ensure_ascii=False, indent=2), "utf-8")


def _groups(report: dict[str, Any]) -> list[tuple[str, dict[str, dict[str, float]]]]:
    systems = report["systems"]
    groups = [("overall", {name: system["overall"] for name, system in systems.items()})]
    for category in systems["full"]["by_category"]:
        groups.append((category, {name: system["by_category"][category] for name, system in systems.items()}))
    return groups


def _budgets(text: str) -> list[int]:
    try:
        budgets = [int(one) for one in text.split(",")]
    except ValueError as exc:
        raise InvalidInput("--budget", "must be whole numbers, such as 256,512,750") from exc
    if not budgets or min(budgets) < 1:
        raise InvalidInput("--budget", "must be numbers of 1 or more")
    return budgets
