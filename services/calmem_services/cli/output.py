"""What commands print: JSON for programs, aligned columns for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    """Adds `--json`, passed on as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, indent=2))


def print_table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns as wide as their widest cell; the last one may run on."""
    cells = [list(titles), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[n]) for row in cells) for n in range(len(titles))]
    for row in cells:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_counts(counts: dict[str, Any]) -> None:
    """One `name  value` line for each count."""
    width = max(map(len, counts), default=0)
    for name, value in counts.items():
        click.echo(f"{name.replace('_', ' ').ljust(width)}  {_cell(value)}")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return " ".join(str(value).split()) or "-"
