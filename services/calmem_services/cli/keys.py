"""API keys: keys create, list, revoke."""

from __future__ import annotations

from typing import Any

import click

from calmem.keys import Keys
from calmem.model import ApiKey, KeyScope
from calmem_services.cli import output


@click.group()
def keys() -> None:
    """API keys of the HTTP services. Once there was one, they ask for it."""


@keys.command()
@click.option("--name", required=True, help="Whose key it is, or what for.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    type=click.Choice([scope.value for scope in KeyScope]),
    help="What it opens; may be given several times.",
)
@click.option("--user", "user_id", help="The only user it speaks for (default: any).")
@output.as_json
def create(name: str, scopes: tuple[str, ...], user_id: str | None, as_json: bool) -> None:
    """Make a key and print it, once: only its hash is kept."""
    with output.database() as database:
        made = Keys(database).create(name=name, scopes=scopes, user_id=user_id)
    if as_json:
        output.print_json({"key": made.secret, **_shown(made.key)})
    else:
        click.echo(made.secret)
        click.echo("Keep it now: it is not shown again.", err=True)


@keys.command("list")
@output.as_json
def list_keys(as_json: bool) -> None:
    """All keys, revoked ones too: what they open, for whom, and when they were last used (to the minute)."""
    with output.database() as database:
        rows = [_shown(key) for key in Keys(database).list()]
    if as_json:
        output.print_json(rows)
    elif not rows:
        click.echo("no keys: services answer on loopback only, without one")
    else:
        header = ["prefix", "scopes", "user_id", "created_at", "last_used_at", "revoked_at", "name"]
        output.print_table([[_cell(row[name]) for name in header] for row in rows], header)


@keys.command()
@click.argument("prefix")
@output.as_json
def revoke(prefix: str, as_json: bool) -> None:
    """Refuse the key of PREFIX from now on; running services notice within seconds."""
    with output.database() as database:
        key = Keys(database).revoke(prefix)
    if as_json:
        output.print_json(_shown(key))
    else:
        click.echo(f"revoked {key.prefix} ({key.name})")


def _shown(key: ApiKey) -> dict[str, Any]:
    times = {"created_at": key.created_at, "last_used_at": key.last_used_at, "revoked_at": key.revoked_at}
    return {
        "prefix": key.prefix,
        "name": key.name,
        "scopes": sorted(key.scopes),
        "user_id": key.user_id,
        **{name: None if at is None else at.isoformat(timespec="seconds") for name, at in times.items()},
    }


def _cell(value: object) -> object:
    if value is None:
        return "-"
    return ",".join(value) if isinstance(value, list) else value


COMMANDS = (keys,)
