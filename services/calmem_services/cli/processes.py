"""Commands that run processes: up, demo, serve, gateway, worker, sweeper."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace
from types import FrameType

import click

from calmem_services.cli import output
from calmem_services.demo.play import play
from calmem_services.http.app import serve as serve_app
from calmem_services.local.stack import run_stack
from calmem_workers.main import run_worker
from calmem_workers.sweep import run_sweeper


@click.command()
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1, 64), help="Worker processes.")
@click.option("--data-dir", help="Where the embedded servers and the model are kept (default: CALMEM_DATA_DIR).")
def up(workers: int, data_dir: str | None) -> None:
    """Start everything on this machine, until Ctrl-C.

    Postgres and Redis are embedded ones below CALMEM_DATA_DIR unless CALMEM_DATABASE_URL and CALMEM_REDIS_URL are set.
    """
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    chosen = output.settings()
    if data_dir:
        chosen = replace(chosen, data_dir=data_dir)
    with run_stack(chosen, workers=workers) as stack:
        click.echo(f"ingest     {stack.ingest_url}")
        click.echo(f"retrieval  {stack.retrieval_url}")
        if stack.gateway_url:
            click.echo(f"gateway    {stack.gateway_url}/v1")
        if not chosen.database_url:
            click.echo(f"database   CALMEM_DATABASE_URL='{stack.settings.database_url}'")
        if not chosen.redis_url:
            click.echo(f"redis      CALMEM_REDIS_URL='{stack.settings.redis_url}'")
        click.echo(f"workers    {workers}")
        click.echo("Ready. Ctrl-C stops everything.")
        stop.wait()
        click.echo("Stopping …")


@click.command()
def demo() -> None:
    """Play a conversation of several weeks through real processes and show what is recalled. Ends by itself."""
    play(output.settings())


@click.group()
def serve() -> None:
    """Run one HTTP service."""


_host = click.option("--host", help="Address to bind to (default: CALMEM_HOST).")
_port = click.option("--port", type=click.IntRange(1, 65_535), help="Port (default: the service's setting).")


@serve.command()
@_host
@_port
def ingest(host: str | None, port: int | None) -> None:
    """Record messages; users and deletion (port: CALMEM_INGEST_PORT)."""
    from calmem_services.ingest.app import create_app

    chosen = output.settings()
    serve_app(create_app(chosen), chosen, host=host or chosen.host, port=port or chosen.ingest_port)


@serve.command()
@_host
@_port
def retrieval(host: str | None, port: int | None) -> None:
    """Recall, search, facts (port: CALMEM_RETRIEVAL_PORT)."""
    from calmem_services.retrieval.app import create_app

    chosen = output.settings()
    serve_app(create_app(chosen), chosen, host=host or chosen.host, port=port or chosen.retrieval_port)


@click.command()
@_host
@_port
@click.option("--upstream", help="Address of the OpenAI-compatible server (default: CALMEM_GATEWAY_UPSTREAM_URL).")
def gateway(host: str | None, port: int | None, upstream: str | None) -> None:
    """Stand before an OpenAI-compatible server and add memory to its chats (port: CALMEM_GATEWAY_PORT)."""
    from calmem_services.gateway.app import create_app

    chosen = output.settings()
    if upstream:
        chosen = replace(chosen, gateway_upstream_url=upstream)
    serve_app(create_app(chosen), chosen, host=host or chosen.host, port=port or chosen.gateway_port)


@click.command()
@click.option("--burst", is_flag=True, help="End when nothing is pending.")
@click.option("--model-path", help="Directory of the model (default: CALMEM_MODEL_PATH).")
def worker(burst: bool, model_path: str | None) -> None:
    """Index what is recorded. Any number on any boxes that reach Postgres and Redis."""
    chosen = output.settings()
    if model_path:
        chosen = replace(chosen, model_path=model_path)
    indexed = run_worker(chosen, burst=burst)
    if burst:
        click.echo(f"indexed {indexed} messages")


@click.command()
@click.option("--once", is_flag=True, help="One round, then end.")
def sweeper(once: bool) -> None:
    """Wake workers for what is pending and set aside what died. One process is enough, more do no harm."""
    run_sweeper(output.settings(), once=once)


COMMANDS = (up, demo, serve, gateway, worker, sweeper)
