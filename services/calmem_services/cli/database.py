"""`calmem db`: the schema."""

from __future__ import annotations

import click
from calmem.settings import Settings
from calmem.storage.migrate import migrate

from calmem_services.cli.output import json_option, print_json
from calmem_services.cli.reach import with_servers


@click.group("db")
def db_command() -> None:
    """The database's schema."""


@db_command.command("migrate")
@json_option
@click.pass_obj
def migrate_command(settings: Settings, as_json: bool) -> None:
    """Bring the database to the newest schema. Safe to run at any time, also by many processes at once."""
    settings = with_servers(settings)
    applied = migrate(
        settings.database_url,
        model=settings.model,
        chunk_chars=settings.chunk_chars,
        overlap_chars=settings.overlap_chars,
    )
    if as_json:
        print_json({"applied": applied})
    else:
        click.echo("applied: " + ", ".join(applied) if applied else "up to date")
