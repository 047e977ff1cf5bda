"""`calmem reindex`: another model or chunking without a pause."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import click

from calmem.model import IndexState, Reindex, SearchIndex
from calmem.models import Models
from calmem.queueing import WakeUps
from calmem.reindexing import Reindexing
from calmem.storage.pool import Database
from calmem_services.cli import output

_WATCH_SECONDS = 1.0
_WHAT_NOW = {
    IndexState.PAUSED: "`calmem reindex resume` goes on",
    IndexState.KEPT: "kept up to date: `calmem reindex rollback` goes back to it, `calmem reindex finish` removes it",
    IndexState.RETIRED: "is being removed",
}


def _chunking(_context: click.Context, _option: click.Parameter, value: str | None) -> tuple[int, int] | None:
    if value is None:
        return None
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", value)
    if found is None:
        raise click.BadParameter("must be CHARS/OVERLAP, such as 1000/200")
    return int(found[1]), int(found[2])


_OPTIONS = (
    click.option("--model", help="Name of the new model (docs/models.md)."),
    click.option("--model-path", help="Its directory, the same for every worker and every process that recalls."),
    click.option(
        "--chunking", metavar="CHARS/OVERLAP", callback=_chunking, help="Longest chunk and overlap, characters."
    ),
    click.option("--min-cosine", type=float, help="The new index's threshold, instead of CALMEM_MIN_COSINE."),
    click.option("--no-switch", is_flag=True, help="Leave recall alone when it is complete; `switch` goes over later."),
)
_watched = click.option("--watch", is_flag=True, help="Show how it goes until it is complete.")


def _new_index(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@contextmanager
def _reindexing() -> Iterator[Reindexing]:
    chosen = output.settings()
    with Database(chosen) as database:
        yield Reindexing(database, chosen, Models(chosen), WakeUps(chosen.redis_url))


@click.group(name="reindex", invoke_without_command=True)
@_new_index
@click.option("--rollback", "back", is_flag=True, help="Let recall go back to the former index.")
@_watched
@output.as_json
@click.pass_context
def reindex(context: click.Context, /, back: bool, watch: bool, as_json: bool, **wanted: Any) -> None:
    """Build a new index beside the old one, with another model or chunking.

    With --model, --model-path or --chunking it starts one; without options it shows how far it is. Workers build it
    behind everything else, recall answers from the old index meanwhile, and what is recorded goes into both. When it
    is complete recall goes over to it in one step; the old one is kept up to date for a rollback until `finish`.
    """
    given = any(wanted.values()) or wanted["min_cosine"] is not None
    if context.invoked_subcommand is not None:
        if given or back or watch:
            raise click.UsageError("options go behind the command's name")
        return
    if back:
        if given:
            raise click.UsageError("--rollback goes with no other change")
        _steer(Reindexing.rollback, as_json)
    elif given:
        _start(watch, as_json, wanted)
    else:
        _status(watch, as_json)


@reindex.command()
@_new_index
@_watched
@output.as_json
def start(watch: bool, as_json: bool, **wanted: Any) -> None:
    """Start a new index; `calmem reindex --model …` is the same."""
    _start(watch, as_json, wanted)


@reindex.command()
@_watched
@output.as_json
def status(watch: bool, as_json: bool) -> None:
    """The active index, the one beside it, how far it is and how long it will take."""
    _status(watch, as_json)


@reindex.command()
@output.as_json
def pause(as_json: bool) -> None:
    """Leave the new index alone for a while.

    Messages are noted for it, so that nothing is missing after `resume`.
    """
    _steer(Reindexing.pause, as_json)


@reindex.command()
@output.as_json
def resume(as_json: bool) -> None:
    """Go on with a paused one."""
    _steer(Reindexing.resume, as_json)


@reindex.command()
@output.as_json
def cancel(as_json: bool) -> None:
    """Give the new index up and remove it."""
    _steer(Reindexing.cancel, as_json)


@reindex.command()
@output.as_json
def switch(as_json: bool) -> None:
    """Let recall go over to the new index, once it is complete.

    Needed after --no-switch and after a rollback only.
    """
    _steer(Reindexing.switch, as_json)


@reindex.command()
@output.as_json
def rollback(as_json: bool) -> None:
    """Let recall go back to the former index; `switch` goes forward again, `cancel` removes the new one."""
    _steer(Reindexing.rollback, as_json)


@reindex.command()
@output.as_json
def finish(as_json: bool) -> None:
    """Remove the former index. After that there is no rollback."""
    _steer(Reindexing.finish, as_json)


def _start(watch: bool, as_json: bool, wanted: dict[str, Any]) -> None:
    chunking = wanted["chunking"]
    if chunking is None and wanted["model"] is None and wanted["model_path"] is None:
        raise click.UsageError("say what is to change: --model NAME, --model-path DIR or --chunking CHARS/OVERLAP")
    with _reindexing() as reindexing:
        reindexing.start(
            model=wanted["model"],
            model_path=wanted["model_path"],
            chunk_chars=None if chunking is None else chunking[0],
            overlap_chars=None if chunking is None else chunking[1],
            min_cosine=wanted["min_cosine"],
            switches=not wanted["no_switch"],
        )
        _show(reindexing, watch, as_json)


def _status(watch: bool, as_json: bool) -> None:
    with _reindexing() as reindexing:
        _show(reindexing, watch, as_json)


def _steer(call: Callable[[Reindexing], Reindex], as_json: bool) -> None:
    with _reindexing() as reindexing:
        call(reindexing)
        _show(reindexing, False, as_json)


def _show(reindexing: Reindexing, watch: bool, as_json: bool) -> None:
    active, others = _follow(reindexing) if watch else reindexing.status()
    if as_json:
        output.print_json({"active": _described(active), "others": [_progress(one) for one in others]})
        return
    rows = [_row(active, "recall answers from it"), *(_row(one.index, _told(one)) for one in others)]
    output.print_table(rows, ["index", "state", "model", "dimension", "chunking", "how far"])
    for one in others:
        if one.problem:
            click.echo(f"index {one.index.index_no}: {one.problem}", err=True)


def _follow(reindexing: Reindexing) -> tuple[SearchIndex, list[Reindex]]:
    """Show a line on stderr as long as an index is being built, a new one wherever something has changed."""
    shown = ""
    while True:
        active, others = reindexing.status()
        building = next((one for one in others if one.index.state is IndexState.BUILDING), None)
        if building is None or (building.complete and not building.switches):
            break
        line = _told(building) + (f"; {building.problem}" if building.problem else "")
        if line != shown:
            if sys.stderr.isatty():
                click.echo(f"\r{line:<{len(shown)}}", nl=False, err=True)
            else:
                click.echo(line, err=True)
            shown = line
        time.sleep(_WATCH_SECONDS)
    if shown and sys.stderr.isatty():
        click.echo(err=True)
    return active, others


def _row(index: SearchIndex, how_far: str) -> list[object]:
    dimension = "-" if index.dimension is None else index.dimension
    chunking = f"{index.chunk_chars}/{index.overlap_chars}"
    return [index.index_no, index.state.value, index.model, dimension, chunking, how_far]


def _told(one: Reindex) -> str:
    state = one.index.state
    if state in (IndexState.KEPT, IndexState.RETIRED):
        told = _WHAT_NOW[state]
    elif state is IndexState.BUILDING and one.complete:
        told = "complete" + ("" if one.switches else ": `calmem reindex switch` lets recall go over to it")
    else:
        told = f"{one.done} of {one.messages} messages"
        if one.per_second is not None and one.seconds_left is not None:
            told += f", {one.per_second:.1f} per second, {timedelta(seconds=round(one.seconds_left))} left"
        if state is IndexState.PAUSED:
            told += f"; {_WHAT_NOW[state]}"
    return f"{told}; {one.failed} failed" if one.failed else told


def _described(index: SearchIndex) -> dict[str, object]:
    return {
        "index_no": index.index_no,
        "state": index.state.value,
        "model": index.model,
        "model_path": index.model_path,
        "dimension": index.dimension,
        "chunk_chars": index.chunk_chars,
        "overlap_chars": index.overlap_chars,
        "min_cosine": index.min_cosine,
    }


def _progress(one: Reindex) -> dict[str, object]:
    return {
        **_described(one.index),
        "messages": one.messages,
        "done": one.done,
        "failed": one.failed,
        "complete": one.complete,
        "switches": one.switches,
        "per_second": None if one.per_second is None else round(one.per_second, 2),
        "seconds_left": None if one.seconds_left is None else round(one.seconds_left, 1),
        "problem": one.problem,
    }
