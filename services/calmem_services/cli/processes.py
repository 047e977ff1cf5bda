"""Commands that run processes: up, demo, serve, gateway, mcp, console, worker, sweeper."""

from __future__ import annotations

import shlex
import signal
import threading
from dataclasses import replace
from types import FrameType

import click

from calmem.errors import InvalidInput
from calmem.ratelimit import RateLimiter
from calmem.settings import Settings
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
    click.echo("Starting everything; the first time takes longest …")
    with run_stack(chosen, workers=workers) as stack:
        click.echo(f"ingest     {stack.ingest_url}")
        click.echo(f"retrieval  {stack.retrieval_url}")
        if stack.console_url:
            click.echo(f"console    {stack.console_url}")
        if stack.gateway_url:
            click.echo(f"gateway    {stack.gateway_url}/v1")
        click.echo(f"workers    {workers}")
        embedded = _embedded(chosen, stack.settings)
        if embedded:
            click.echo("For Python and calmem's other commands, in their terminal:")
            click.echo(f"export {embedded}")
        click.echo("Ready. Ctrl-C stops everything.")
        stop.wait()
        click.echo("Stopping …")


def _embedded(given: Settings, running: Settings) -> str:
    """Assignments for a shell: the URLs that were not given. Given ones may hold a password and are known anyway."""
    urls = {
        "CALMEM_DATABASE_URL": "" if given.database_url else running.database_url,
        "CALMEM_REDIS_URL": "" if given.redis_url else running.redis_url,
    }
    return " ".join(f"{name}={shlex.quote(url)}" for name, url in urls.items() if url)


@click.command()
def demo() -> None:
    """Play a conversation of five weeks and show what is recalled.

    Through real processes and servers of its own, in a temporary directory; ends by itself.
    """
    play(output.settings())


@click.group()
def serve() -> None:
    """Run one HTTP service: ingest or retrieval."""


_host = click.option("--host", help="Address to bind to (default: CALMEM_HOST).")
_port = click.option("--port", type=click.IntRange(1, 65_535), help="Port (default: the CALMEM_…_PORT of the service).")


@serve.command()
@_host
@_port
def ingest(host: str | None, port: int | None) -> None:
    """Record messages; users and deletion."""
    from calmem_services.ingest.app import create_app

    chosen = _bound_to(host)
    serve_app(create_app(chosen), chosen, port=port or chosen.ingest_port, limiter=_limiter(chosen))


@serve.command()
@_host
@_port
def retrieval(host: str | None, port: int | None) -> None:
    """Recall, search, facts; reading back."""
    from calmem_services.retrieval.app import create_app

    chosen = _bound_to(host)
    serve_app(create_app(chosen), chosen, port=port or chosen.retrieval_port, limiter=_limiter(chosen))


@click.command()
@click.option("--http", is_flag=True, help="Serve streamable HTTP at /mcp instead of stdin and stdout.")
@click.option("--user", help="Whose memory it is; over stdio only (default: CALMEM_MCP_USER).")
@click.option("--session", help="Session that facts are written to; over stdio only (default: CALMEM_MCP_SESSION).")
@_host
@_port
def mcp(http: bool, user: str | None, session: str | None, host: str | None, port: int | None) -> None:
    """Serve facts and memory to MCP clients. Over HTTP the user is the one the API key is bound to."""
    try:
        from calmem_services.mcp.app import create_app
        from calmem_services.mcp.server import run_stdio
    except ModuleNotFoundError as exc:
        raise click.UsageError(f"{exc.name} is not installed: pip install 'calmem[mcp]'") from exc
    chosen = _bound_to(host)
    if not http:
        if host or port:
            raise click.UsageError("--host and --port go with --http")
        run_stdio(chosen, user_id=user or chosen.mcp_user, session_id=session or chosen.mcp_session)
        return
    if user or session:
        raise click.UsageError("--user and --session are for stdio; over HTTP the API key says whose memory it is")
    serve_app(create_app(chosen), chosen, port=port or chosen.mcp_port, limiter=_limiter(chosen))


def _bound_to(host: str | None) -> Settings:
    chosen = output.settings()
    return replace(chosen, host=host or chosen.host)


def _limiter(settings: Settings) -> RateLimiter | None:
    """Made here, since retrieval must not know Redis."""
    if settings.rate_limit_per_minute == 0:
        return None
    if not settings.redis_url:
        raise InvalidInput(
            "CALMEM_REDIS_URL", "must be set where CALMEM_RATE_LIMIT_PER_MINUTE is: requests are counted there"
        )
    return RateLimiter(settings.redis_url, per_minute=settings.rate_limit_per_minute)


@click.command()
@_host
@_port
@click.option("--upstream", help="Address of the OpenAI-compatible server (default: CALMEM_GATEWAY_UPSTREAM_URL).")
def gateway(host: str | None, port: int | None, upstream: str | None) -> None:
    """Stand before an OpenAI-compatible server and add memory to its chats."""
    from calmem_services.gateway.app import create_app

    chosen = _bound_to(host)
    if upstream:
        chosen = replace(chosen, gateway_upstream_url=upstream)
    serve_app(create_app(chosen), chosen, port=port or chosen.gateway_port, limiter=_limiter(chosen))


@click.command()
@_host
@_port
def console(host: str | None, port: int | None) -> None:
    """Serve the web console: queue, users, sessions, facts, a recall playground, failed messages.

    Log in with an API key; as long as none was made, it answers on this machine only, to anybody.
    """
    from calmem_services.console.app import create_app

    chosen = _bound_to(host)
    serve_app(create_app(chosen), chosen, port=port or chosen.console_port, limiter=_limiter(chosen))


@click.command()
@click.option("--burst", is_flag=True, help="End when nothing is pending.")
@click.option("--model-path", help="Directory of the model (default: CALMEM_MODEL_PATH).")
def worker(burst: bool, model_path: str | None) -> None:
    """Index what is recorded.

    Any number, on any boxes that reach Postgres and Redis.
    """
    chosen = output.settings()
    if model_path:
        chosen = replace(chosen, model_path=model_path)
    indexed = run_worker(chosen, burst=burst)
    if burst:
        click.echo(f"indexed {indexed} messages")


@click.command()
@click.option("--once", is_flag=True, help="One round, then end.")
def sweeper(once: bool) -> None:
    """Wake workers again, set aside what keeps failing.

    It finds messages whose wake-up or worker was lost. One process is enough, more do no harm.
    """
    run_sweeper(output.settings(), once=once)


COMMANDS = (up, demo, serve, gateway, mcp, console, worker, sweeper)
