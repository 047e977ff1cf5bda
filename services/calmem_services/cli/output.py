"""Printing, and opening what a command works with."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import click

from calmem import logs
from calmem.explaining import Explainer
from calmem.memory import Memory
from calmem.models import Models
from calmem.recall import Recaller
from calmem.settings import Settings
from calmem.storage.pool import Database

# A command loads the model for one question; a service has it loaded before its first.
DEADLINE_MS = 30_000

as_json: Callable[[Any], Any] = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def print_json(value: object) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, indent=2))


def print_table(rows: Sequence[Sequence[object]], header: Sequence[str]) -> None:
    """Aligned columns; the last one may be as long as it likes."""
    shown = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[place]) for row in shown) for place in range(len(header))]
    for row in shown:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        click.echo("  ".join([*cells, row[-1]]).rstrip())


def print_counts(counts: Mapping[str, int]) -> None:
    click.echo(", ".join(f"{count} {kind}" for kind, count in counts.items()))


def settings() -> Settings:
    """The settings of this process, with logging set up."""
    chosen = Settings.from_env()
    logs.configure(chosen)
    return chosen


def _patient() -> Settings:
    chosen = settings()
    return replace(chosen, recall_deadline_ms=max(chosen.recall_deadline_ms, DEADLINE_MS))


@contextmanager
def memory() -> Iterator[Memory]:
    """Memory over the configured database or services. Raises PermanentError when neither is configured."""
    with Memory(settings=_patient()) as opened:
        yield opened


@contextmanager
def explainer() -> Iterator[Explainer]:
    """Explains recalls over the configured database, which the services do not."""
    chosen = _patient()
    with Database(chosen) as opened, closing(Recaller(opened, chosen, Models(chosen))) as recaller:
        yield Explainer(opened, chosen, recaller)


@contextmanager
def database() -> Iterator[Database]:
    with Database(settings()) as opened:
        yield opened
