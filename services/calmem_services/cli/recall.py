"""`calmem recall` and `calmem search`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click
from calmem.model import STYLES, Item, Style
from calmem.models import Models
from calmem.recall import Recaller
from calmem.settings import Settings
from calmem.storage.pool import Database

from calmem_services.cli.output import json_option, print_json
from calmem_services.cli.reach import with_servers
from calmem_services.http import wire

# This process loads the model for one question; a service has it loaded before the first.
_DEADLINE_MS = 30_000
_SHOWN_CHARS = 300


@click.command("recall")
@click.argument("query")
@click.option("--user", "user_id", required=True, help="Whose memory.")
@click.option("--session", "session_id", required=True, help="The session that the block is for.")
@click.option("--current-tokens", type=int, default=0, show_default=True, help="Tokens already in the context.")
@click.option("--capacity", type=int, default=128_000, show_default=True, help="Tokens that the context holds.")
@click.option("--active", "active_message_ids", multiple=True, help="Message the model can see; may be repeated.")
@click.option("--active-from-seq", type=int, help="The model can see this session from this `seq` on.")
@click.option("--since", help="Only from this time on (ISO 8601 with offset).")
@click.option("--until", help="Only before this time.")
@click.option("-k", type=int, help="At most so many items.")
@click.option("--style", type=click.Choice(STYLES), default="list", show_default=True)
@json_option
@click.pass_obj
def recall_command(
    settings: Settings,
    query: str,
    user_id: str,
    session_id: str,
    current_tokens: int,
    capacity: int,
    active_message_ids: tuple[str, ...],
    active_from_seq: int | None,
    since: str | None,
    until: str | None,
    k: int | None,
    style: Style,
    as_json: bool,
) -> None:
    """Print the block that a host would inject for QUERY."""
    with _Opened(settings) as recaller:
        found = recaller.recall(
            user_id=user_id,
            session_id=session_id,
            query=query,
            current_tokens=current_tokens,
            context_window_capacity=capacity,
            active_message_ids=list(active_message_ids) or None,
            active_from_seq=active_from_seq,
            since=since,
            until=until,
            k=k,
            style=style,
        )
    if as_json:
        print_json(wire.recall(found))
        return
    click.echo(found.block or "(nothing to inject)")
    notes = f"tier {found.tier}, {found.tokens} tokens, {len(found.items)} items, {found.timings_ms['total']:.0f} ms"
    click.echo(notes + (f"; degraded: {found.degraded}" if found.degraded else ""), err=True)


@click.command("search")
@click.argument("query")
@click.option("--user", "user_id", required=True, help="Whose memory.")
@click.option("--session", "session_id", help="Only inside this session.")
@click.option("--since", help="Only from this time on (ISO 8601 with offset).")
@click.option("--until", help="Only before this time.")
@click.option("-k", type=int, default=10, show_default=True, help="At most so many items.")
@json_option
@click.pass_obj
def search_command(
    settings: Settings,
    query: str,
    user_id: str,
    session_id: str | None,
    since: str | None,
    until: str | None,
    k: int,
    as_json: bool,
) -> None:
    """Print what is found for QUERY, ranked, without a budget."""
    with _Opened(settings) as recaller:
        items = recaller.search(
            user_id=user_id, query=query, k=k, since=since, until=until, session_id=session_id
        )
    if as_json:
        print_json({"items": [wire.item(item) for item in items]})
    else:
        _print_items(items)


def _print_items(items: Sequence[Item]) -> None:
    if not items:
        click.echo("nothing found", err=True)
    for place, item in enumerate(items, 1):
        why = ", ".join(item.reasons)
        click.echo(f"{place:3}. {item.score:.3f}  {item.created_at:%Y-%m-%d %H:%M}  {item.session_id}  ({why})")
        said = " ".join(item.text.split())
        click.echo(f"     {item.name or item.role}: {said[:_SHOWN_CHARS]}{'…' if len(said) > _SHOWN_CHARS else ''}")


class _Opened:
    """A recaller over the configured or the embedded database."""

    def __init__(self, settings: Settings) -> None:
        settings = with_servers(settings)
        settings = replace(settings, recall_deadline_ms=max(settings.recall_deadline_ms, _DEADLINE_MS))
        self._database = Database(settings)
        self._recaller = Recaller(self._database, settings, Models(settings))

    def __enter__(self) -> Recaller:
        self._database.open()
        return self._recaller

    def __exit__(self, *_exc: Any) -> None:
        self._recaller.close()
        self._database.close()
