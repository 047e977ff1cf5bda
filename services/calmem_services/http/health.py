"""/healthz, /readyz and /metrics, the same in every service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from calmem import metrics
from calmem.errors import CalmemError
from calmem.settings import Settings
from calmem.storage import backlog, indexes, reindexes, stats
from calmem.storage.pool import Database

# Longest wait for the database of one look at it.
_WAIT_SECONDS = 2.0
PATHS = ("/healthz", "/readyz", "/metrics")
_READY_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["status", "checks", "oldest_pending_seconds", "oldest_live_seconds", "pending", "failed"],
    "properties": {
        "status": {"enum": ["ready", "degraded", "unready"]},
        "checks": {"type": "object", "additionalProperties": {"type": "string"}},
        "oldest_pending_seconds": {"type": ["number", "null"]},
        "oldest_live_seconds": {"type": ["number", "null"], "description": "what degraded goes by"},
        "pending": {"type": ["integer", "null"], "description": f"of each lane {backlog.MOST_COUNTED} are counted"},
        "failed": {"type": ["integer", "null"], "description": f"{backlog.MOST_COUNTED} are counted"},
    },
}


def router(
    database: Database, settings: Settings, checks: dict[str, Callable[[], None]], *, serves_without: bool = False
) -> APIRouter:
    """The health routes. `checks`: name -> a call that raises CalmemError when that part is not fit to serve.

    `serves_without`: a service that goes on without these parts is `degraded`, not `unready`.
    """
    routes = APIRouter(tags=["operations"])

    @routes.get("/healthz", responses={200: _json({"type": "object", "properties": {"status": {"const": "ok"}}})})
    async def healthz() -> dict[str, str]:
        """The process is up and answers. Says nothing about what it depends on."""
        return {"status": "ok"}

    @routes.get(
        "/readyz", response_class=JSONResponse, responses={200: _json(_READY_SCHEMA), 503: _json(_READY_SCHEMA)}
    )
    def readyz() -> JSONResponse:
        """200 `ready`; 200 `degraded` when it serves but the oldest pending live message is older than the setting
        `degraded_after_seconds` (the indexing is stuck, not this process); 503 `unready` when it cannot serve."""
        results: dict[str, str] = {}
        oldest: float | None = None
        live: float | None = None
        pending = failed = None
        try:
            with database.connection(_WAIT_SECONDS) as conn:
                state = backlog.read(conn)
            oldest, live = round(state.oldest_seconds, 1), round(state.live_seconds, 1)
            pending, failed = state.pending, state.failed
            results["database"] = "ok"
        except CalmemError as exc:
            results["database"] = str(exc)
        for name, check in checks.items():
            try:
                check()
                results[name] = "ok"
            except CalmemError as exc:
                results[name] = str(exc)
        late = live is not None and live > settings.degraded_after_seconds
        results["indexing"] = (
            "unknown" if live is None else f"the oldest live message has waited {live} s" if late else "ok"
        )
        fit = all(result == "ok" for name, result in results.items() if name != "indexing")
        body = {
            "status": ("degraded" if serves_without else "unready") if not fit else "degraded" if late else "ready",
            "checks": results,
            "oldest_pending_seconds": oldest,
            "oldest_live_seconds": live,
            "pending": pending,
            "failed": failed,
        }
        return JSONResponse(body, status_code=200 if fit or serves_without else 503)

    @routes.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus text"}},
    )
    def prometheus() -> Response:
        """Prometheus metrics of this process, and the state of the queue."""
        try:
            with database.connection(_WAIT_SECONDS) as conn:
                metrics.show_queue(backlog.queue_state(conn))
                metrics.CHUNKS.set(stats.estimated_chunks(conn))
                beside = indexes.in_use(conn)[1:]
                metrics.show_reindex(reindexes.progress(conn, beside[0]) if beside else None)
            metrics.DATABASE_UP.set(1)
        except CalmemError:
            # Answered all the same: the process's own metrics matter most when the database is away.
            metrics.show_database_away()
        pool = database.stats()
        metrics.POOL_CONNECTIONS.labels("open").set(pool["pool_size"])
        metrics.POOL_CONNECTIONS.labels("free").set(pool["pool_available"])
        metrics.POOL_CONNECTIONS.labels("waiting").set(pool["requests_waiting"])
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    return routes


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": "Answer", "content": {"application/json": {"schema": schema}}}
