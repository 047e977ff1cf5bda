"""`calmem serve`, `calmem worker`, `calmem sweeper`: one process each, as in the Procfile."""

from __future__ import annotations

from importlib import import_module

import click
from calmem.settings import Settings


@click.command("serve")
@click.argument("service", type=click.Choice(["ingest", "retrieval"]))
@click.option("--host", help="Address to bind to (setting HOST).")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port to bind to (settings INGEST_PORT, RETRIEVAL_PORT).")
@click.pass_obj
def serve_command(settings: Settings, service: str, host: str | None, port: int | None) -> None:
    """Run the ingest or the retrieval service until SIGTERM or Ctrl-C."""
    from calmem_services.http.app import serve

    # By name: retrieval must not load what ingest needs.
    app = import_module(f"calmem_services.{service}.app").create_app(settings)
    usual = settings.ingest_port if service == "ingest" else settings.retrieval_port
    serve(app, settings, host=host or settings.host, port=usual if port is None else port)


@click.command("worker")
@click.option("--burst", is_flag=True, help="End when nothing is pending.")
@click.pass_obj
def worker_command(settings: Settings, burst: bool) -> None:
    """Index recorded messages until SIGTERM or Ctrl-C."""
    from calmem_workers.main import run_worker

    indexed = run_worker(settings, burst=burst)
    if burst:
        click.echo(f"indexed {indexed} messages")


@click.command("sweeper")
@click.option("--once", is_flag=True, help="One round, then end.")
@click.pass_obj
def sweeper_command(settings: Settings, once: bool) -> None:
    """Wake workers for what is pending, set aside what died, until SIGTERM or Ctrl-C."""
    from calmem_workers.sweep import run_sweeper

    run_sweeper(settings, once=once)
