"""The `calmem` command: its groups, and how an error reaches the person at the terminal."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click
from calmem import logs
from calmem.errors import CalmemError, InvalidInput
from calmem.settings import Settings

# Loaded when asked for: `calmem stats` must not wait for the embedding runtime or the web framework.
_COMMANDS = {
    "up": "up",
    "demo": "demo",
    "serve": "processes",
    "worker": "processes",
    "sweeper": "processes",
    "db": "database",
    "import": "import_history",
    "recall": "recall",
    "search": "recall",
    "facts": "facts",
    "failed": "failed",
    "stats": "stats",
    "users": "users",
    "sessions": "users",
    "messages": "users",
    "settings": "settings",
    "eval": "evaluate",
}
_USAGE_ERROR = 2


class Commands(click.Group):
    """Finds a command in its module and says every error of calmem in one line, without a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(f"calmem_services.cli.{_COMMANDS[cmd_name]}")
        command = getattr(module, f"{cmd_name}_command")
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CalmemError as exc:
            shown = click.ClickException(str(exc))
            shown.exit_code = _USAGE_ERROR if isinstance(exc, InvalidInput) else 1
            raise shown from exc


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="calmem")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Memory for conversational AI that outlives the context window and the session.

    Settings come from the environment (CALMEM_...); `calmem settings` lists them. Exit codes: 0 done, 1 failed,
    2 an option, an argument or a setting is wrong.
    """
    settings = Settings.from_env()
    logs.configure(settings)
    ctx.obj = settings


def main() -> None:
    cli(prog_name="calmem")
