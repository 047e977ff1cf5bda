"""`calmem failed`: messages that could not be indexed."""

from __future__ import annotations

import click
from calmem.errors import InvalidInput, NotFound
from calmem.queueing import WakeUps
from calmem.settings import Settings
from calmem.storage import tasks
from calmem.storage.pool import Database
from calmem.text import clean_id

from calmem_services.cli.output import json_option, print_json, print_table
from calmem_services.cli.reach import with_servers


@click.group("failed", invoke_without_command=True)
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="Show at most so many.")
@json_option
@click.pass_context
def failed_command(ctx: click.Context, limit: int, as_json: bool) -> None:
    """List the messages that were set aside after their last attempt; `failed retry` gives them another chance."""
    if ctx.invoked_subcommand is not None:
        return
    with Database(with_servers(ctx.obj)) as database, database.connection() as conn:
        found = tasks.list_failed(conn, limit=limit)
    shown = [
        {
            "message_id": one.message_id,
            "user_id": one.user_id,
            "session_id": one.session_id,
            "attempts": one.attempts,
            "failed_at": one.failed_at.isoformat(),
            "error": one.error,
        }
        for one in found
    ]
    if as_json:
        print_json({"failed": shown})
    elif not shown:
        click.echo("no failed messages")
    else:
        titles = ("MESSAGE", "USER", "SESSION", "ATTEMPTS", "FAILED AT", "ERROR")
        print_table(titles, [list(one.values()) for one in shown])


@failed_command.command("retry")
@click.argument("message_id", required=False)
@click.option("--all", "every", is_flag=True, help="Every failed message.")
@json_option
@click.pass_obj
def retry_command(settings: Settings, message_id: str | None, every: bool, as_json: bool) -> None:
    """Index one failed message, or all of them, again."""
    if (message_id is None) == (not every):
        raise InvalidInput("MESSAGE_ID", "give one message id, or --all")
    chosen = None if message_id is None else clean_id(message_id, field="MESSAGE_ID")
    settings = with_servers(settings)
    with Database(settings) as database, database.connection() as conn:
        lanes = tasks.retry_failed(conn, message_id=chosen)
    if chosen is not None and not lanes:
        raise NotFound(f"MESSAGE_ID: no failed message has the id {chosen!r}; `calmem failed` lists them")
    wake_ups = WakeUps(settings.redis_url)
    for lane in set(lanes):
        wake_ups.push(lane)
    if as_json:
        print_json({"retried": len(lanes)})
    else:
        click.echo(f"{len(lanes)} messages will be tried again")
