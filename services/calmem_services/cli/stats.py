"""`calmem stats`: what is kept, what waits, and how recall is doing."""

from __future__ import annotations

import click
from calmem.settings import Settings
from calmem.storage import stats, tasks
from calmem.storage.pool import Database

from calmem_services.cli.output import json_option, print_counts, print_json, print_table
from calmem_services.cli.reach import with_servers
from calmem_services.cli.service_metrics import RecallFigures, read_figures


@click.command("stats")
@json_option
@click.pass_obj
def stats_command(settings: Settings, as_json: bool) -> None:
    """Show counts, the queue, and the recall figures of this machine's retrieval service."""
    with Database(with_servers(settings)) as database, database.connection() as conn:
        counts = stats.counts(conn)
        state = tasks.queue_state(conn)
    queue = {
        "pending": state.pending,
        **{f"pending_{lane}": count for lane, count in state.pending_by_lane.items()},
        "leased": state.leased,
        "failed": state.failed,
        "oldest_pending_seconds": round(state.oldest_seconds, 1),
    }
    url = f"http://{settings.host}:{settings.retrieval_port}/metrics"
    figures = read_figures(url)
    if as_json:
        shown = None if figures is None else {"tiers": figures.tiers, "latency_ms": figures.latency_ms}
        print_json({"counts": counts, "queue": queue, "recall": shown})
        return
    print_counts(counts)
    click.echo()
    print_counts(queue)
    click.echo()
    _print_figures(figures, url)


def _print_figures(figures: RecallFigures | None, url: str) -> None:
    if figures is None:
        click.echo(f"recall: no retrieval service answers at {url}")
        return
    tiers = ", ".join(f"{tier} {count}" for tier, count in figures.tiers.items()) or "none yet"
    click.echo(f"recalls by tier: {tiers}")
    if figures.latency_ms:
        rows = [(stage, at["p50"], at["p95"]) for stage, at in figures.latency_ms.items()]
        print_table(("STAGE", "P50 MS", "P95 MS"), rows)
