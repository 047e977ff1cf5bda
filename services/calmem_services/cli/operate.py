"""Commands for operators: db, stats, failed, settings."""

from __future__ import annotations

from dataclasses import fields

import click

from calmem.failures import Failures
from calmem.model import Lane
from calmem.queueing import WakeUps
from calmem.settings import Settings, variable
from calmem.storage import backlog, indexes, tasks
from calmem.storage import migrate as migrations
from calmem.storage import stats as counting
from calmem_services.cli import output
from calmem_services.http.figures import figures_url, read_figures


@click.group()
def db() -> None:
    """The database's schema."""


@db.command()
@output.as_json
def migrate(as_json: bool) -> None:
    """Bring the database to the newest schema.

    Safe to run any number of times, by several processes at once. The first run also settles the database's model
    (CALMEM_MODEL).
    """
    chosen = output.settings()
    if not chosen.database_url:
        raise click.UsageError("set CALMEM_DATABASE_URL")
    applied = migrations.migrate(
        chosen.database_url,
        model=chosen.model,
        chunk_chars=chosen.chunk_chars,
        overlap_chars=chosen.overlap_chars,
    )
    if as_json:
        output.print_json({"applied": applied})
    else:
        click.echo(f"applied {', '.join(applied)}" if applied else "up to date")
    with output.database() as database, database.connection() as conn:
        kept = indexes.active_index(conn).model
    if kept != chosen.model:
        click.echo(
            f"this database keeps the model it has, {kept}; CALMEM_MODEL is for a new one, "
            f"`calmem reindex --model {chosen.model}` changes it",
            err=True,
        )


@click.command()
@output.as_json
def stats(as_json: bool) -> None:
    """What is stored, what waits, how fast recall is.

    Stored rows, what waits to be indexed and for how long, and the figures of the retrieval service on this machine
    (CALMEM_HOST, CALMEM_RETRIEVAL_PORT).
    """
    chosen = output.settings()
    with output.database() as database, database.connection() as conn:
        state = backlog.queue_state(conn)
        counts = counting.counts(conn)
    late = state.live_seconds > chosen.degraded_after_seconds
    shown = {
        "status": "degraded" if late else "ok",
        "pending": state.pending,
        "pending_live": state.pending_by_lane[Lane.LIVE],
        "pending_backfill": state.pending_by_lane[Lane.BACKFILL],
        "pending_reindex": state.pending_by_lane[Lane.REINDEX],
        "leased": state.leased,
        "failed": state.failed,
        "oldest_pending_seconds": round(state.oldest_seconds, 1),
        "oldest_live_seconds": round(state.live_seconds, 1),
        **counts,
    }
    url = figures_url(chosen)
    figures = read_figures(url)
    if as_json:
        recalls = None if figures is None else {"tiers": figures.tiers, "latency_ms": figures.latency_ms}
        output.print_json({**shown, "recall": recalls})
        return
    output.print_table(list(shown.items()), ["what", "now"])
    if figures is None:
        click.echo(f"\nrecall: no retrieval service answers at {url}")
        return
    click.echo(
        f"\nrecalls answered at {url}, by tier: {', '.join(f'{t} {n}' for t, n in figures.tiers.items()) or 'none yet'}"
    )
    rows = [(stage, *("-" if ms is None else ms for ms in at.values())) for stage, at in figures.latency_ms.items()]
    if rows:
        output.print_table(rows, ["stage", "p50 ms", "p95 ms"])


@click.group(invoke_without_command=True)
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 10_000), help="At most so many lines.")
@output.as_json
@click.pass_context
def failed(context: click.Context, limit: int, as_json: bool) -> None:
    """Messages set aside after their last attempt.

    They are found by their words, not by their meaning. `retry` gives them new attempts.
    """
    if context.invoked_subcommand is not None:
        return
    with output.database() as database, database.connection() as conn:
        rows = [row for _, row in tasks.list_failed(conn, limit=limit)]
    if as_json:
        output.print_json([{**vars(row), "failed_at": row.failed_at.isoformat()} for row in rows])
    elif not rows:
        click.echo("no failed messages")
    else:
        table = [
            (
                r.message_id,
                r.user_id,
                r.session_id,
                r.index_no,
                r.attempts,
                r.failed_at.isoformat("T", "seconds"),
                r.error,
            )
            for r in rows
        ]
        output.print_table(table, ["message", "user", "session", "index", "attempts", "failed at", "error"])


@failed.command()
@click.argument("message_id", required=False)
@click.option("--all", "every", is_flag=True, help="Every failed message.")
def retry(message_id: str | None, every: bool) -> None:
    """Give a failed message, or all of them, new attempts."""
    if (message_id is None) != every:
        raise click.UsageError("name one MESSAGE_ID, or give --all")
    chosen = output.settings()
    with output.database() as database:
        count = Failures(database, WakeUps(chosen.redis_url)).retry(message_id)
    click.echo(f"{count} messages will be tried again")


@click.command()
@output.as_json
def settings(as_json: bool) -> None:
    """Every setting: variable, value, default, meaning.

    Of those that hold a password or a key only whether they are set.
    """
    chosen = output.settings()
    rows = []
    for field in fields(Settings):
        value = getattr(chosen, field.name)
        if field.metadata["secret"] and value:
            value = "(set)"
        rows.append((variable(field.name), value, field.default, field.metadata["meaning"]))
    if as_json:
        names = ("variable", "value", "default", "meaning")
        output.print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        output.print_table(rows, ["variable", "value", "default", "meaning"])


COMMANDS = (db, stats, failed, settings)
