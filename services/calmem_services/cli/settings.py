"""`calmem settings`: every setting with its value, default and meaning."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import click
from calmem.settings import PREFIX, Settings

from calmem_services.cli.output import json_option, print_json


@click.command("settings")
@json_option
@click.pass_obj
def settings_command(settings: Settings, as_json: bool) -> None:
    """List every setting: environment variable, value, default, meaning."""
    rows = [_row(settings, setting) for setting in fields(Settings)]
    if as_json:
        print_json({"settings": rows})
        return
    for row in rows:
        changed = "" if row["value"] == row["default"] else f"   (default {_shown(row['default'])})"
        click.echo(f"{row['variable']}={_shown(row['value'])}{changed}")
        click.echo(f"    {row['meaning']}")


def _row(settings: Settings, setting: Any) -> dict[str, Any]:
    value = getattr(settings, setting.name)
    if setting.metadata["secret"] and value:
        value = "(set, hidden)"
    return {
        "variable": PREFIX + setting.name.upper(),
        "value": value,
        "default": setting.default,
        "meaning": setting.metadata["meaning"],
    }


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
