"""`calmem facts`: exact key-value statements."""

from __future__ import annotations

import click
from calmem.facts import Facts
from calmem.settings import Settings
from calmem.storage.pool import Database

from calmem_services.cli.output import json_option, print_json, print_table
from calmem_services.cli.reach import with_servers
from calmem_services.http import wire

_user = click.option("--user", "user_id", required=True, help="Whose facts.")
_session = click.option("--session", "session_id", required=True, help="The session that the fact belongs to.")


@click.group("facts")
def facts_command() -> None:
    """Facts: exact key-value statements of a user's sessions."""


@facts_command.command("list")
@_user
@click.option("--pattern", help="Glob over the key: *, ?, [...].")
@click.option("--category", help="Only of this category.")
@click.option("--session", "session_id", help="Only of this session.")
@json_option
@click.pass_obj
def list_command(
    settings: Settings,
    user_id: str,
    pattern: str | None,
    category: str | None,
    session_id: str | None,
    as_json: bool,
) -> None:
    """List live facts, the newest write first."""
    with Database(with_servers(settings)) as database:
        found = Facts(database).recall(user_id=user_id, pattern=pattern, category=category, session_id=session_id)
    if as_json:
        print_json({"facts": [wire.fact(fact) for fact in found]})
        return
    rows = [(f.session_id, f.category, f.key, f.value, f.updated_at.isoformat(timespec="seconds")) for f in found]
    print_table(("SESSION", "CATEGORY", "KEY", "VALUE", "UPDATED"), rows)


@facts_command.command("set")
@_user
@_session
@click.argument("key")
@click.argument("value")
@click.option("--category", help='A label; without one "general".')
@click.option("--expires-at", help="When it ends to hold (ISO 8601 with offset).")
@json_option
@click.pass_obj
def set_command(
    settings: Settings,
    user_id: str,
    session_id: str,
    key: str,
    value: str,
    category: str | None,
    expires_at: str | None,
    as_json: bool,
) -> None:
    """Write a fact. The value that it replaces is kept in its history."""
    with Database(with_servers(settings)) as database:
        fact = Facts(database).remember(
            user_id=user_id,
            session_id=session_id,
            key=key,
            value=value,
            category=category,
            expires_at=expires_at,
            source="cli",
        )
    if as_json:
        print_json({"stored": False} if fact is None else {"stored": True, **wire.fact(fact)})
    else:
        click.echo("not stored: this user's memory is off" if fact is None else f"{fact.key} = {fact.value}")


@facts_command.command("forget")
@_user
@_session
@click.argument("key")
@json_option
@click.pass_obj
def forget_command(settings: Settings, user_id: str, session_id: str, key: str, as_json: bool) -> None:
    """Remove a fact and its history."""
    with Database(with_servers(settings)) as database:
        receipt = Facts(database).forget(user_id=user_id, session_id=session_id, key=key)
    if as_json:
        print_json({"removed": dict(receipt.removed)})
    else:
        click.echo(f"forgot {key}")


@facts_command.command("history")
@_user
@_session
@click.argument("key")
@json_option
@click.pass_obj
def history_command(settings: Settings, user_id: str, session_id: str, key: str, as_json: bool) -> None:
    """Show the values of a fact that later ones replaced, oldest first."""
    with Database(with_servers(settings)) as database:
        versions = Facts(database).history(user_id=user_id, session_id=session_id, key=key)
    shown = [
        {
            "value": version.value,
            "category": version.category,
            "written_at": version.written_at.isoformat(),
            "superseded_at": version.superseded_at.isoformat(),
        }
        for version in versions
    ]
    if as_json:
        print_json({"versions": shown})
    else:
        print_table(("VALUE", "CATEGORY", "WRITTEN", "SUPERSEDED"), [list(one.values()) for one in shown])
