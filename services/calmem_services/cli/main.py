"""`calmem`: one command for everything an operator does."""

from __future__ import annotations

import sys

import click

from calmem.errors import CalmemError, InvalidInput
from calmem_services.cli import data, doctor, evaluate, keys, models, operate, processes, reindexing


class _AsWritten(click.Group):
    """Lists its commands in the order they were added in: what runs, what an operator does, what is remembered."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_AsWritten, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="calmem")
def cli() -> None:
    """Memory for conversational AI that outlives the context window and the session.

    Settings come from the environment (CALMEM_…); `calmem settings` lists them.
    """


for command in (
    *processes.COMMANDS,
    *operate.COMMANDS,
    *doctor.COMMANDS,
    *data.COMMANDS,
    *keys.COMMANDS,
    evaluate.evaluate,
    models.model,
    reindexing.reindex,
):
    cli.add_command(command)


def main() -> None:
    """Run the command; errors of calmem end in one line on stderr and exit code 1 (2: bad input)."""
    try:
        cli(standalone_mode=True)
    except InvalidInput as exc:
        click.echo(f"calmem: {exc}", err=True)
        sys.exit(2)
    except CalmemError as exc:
        click.echo(f"calmem: {exc}", err=True)
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(1)


if __name__ == "__main__":
    main()
