"""`calmem doctor`."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict

import click

from calmem import doctor as examination
from calmem.doctor import State
from calmem_services.cli import output


@click.command()
@output.as_json
def doctor(as_json: bool) -> None:
    """Examine what calmem stands on, and say how to mend it.

    Misspelt settings, connection, extension, clock, migrations, model, queue, workers, pending and failed messages, and whether the scan of
    vectors is really index-only. Reads only. Exit code 1 when a check fails; warnings leave it 0.
    """
    chosen = output.settings()
    findings = []
    for finding in examination.examine(chosen, environ=os.environ):
        findings.append(finding)
        if not as_json:
            click.echo(f"{finding.state.upper():8} {finding.check:11} {finding.found}")
            if finding.mend is not None:
                click.echo(f"{'':20} -> {finding.mend}")
    if as_json:
        output.print_json([asdict(finding) for finding in findings])
    if any(finding.state == State.FAILURE for finding in findings):
        sys.exit(1)


COMMANDS = (doctor,)
