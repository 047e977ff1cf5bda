"""The recall playground: what a host would be given, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from calmem import budget
from calmem.errors import Forbidden, InvalidInput
from calmem.explaining import Explainer
from calmem.fates import Explanation
from calmem.model import KeyScope
from calmem.recall import MAX_K, Recaller
from calmem.settings import Settings
from calmem.storage.pool import Database
from calmem_services.console.gate import Gate, Visitor, read_form
from calmem_services.console.pages import render

_BLANK = {
    "user": "",
    "session": "",
    "query": "",
    "fill": "30",
    "capacity": "128000",
    "active": "",
    "k": "",
    "style": "list",
}


def router(gate: Gate, database: Database, settings: Settings, recaller: Recaller) -> APIRouter:
    """`/playground`. The query comes in the body, so that no log and no history of a browser has it."""
    routes = APIRouter(include_in_schema=False)
    explainer = Explainer(database, settings, recaller)
    asking = Depends(gate.visitor)

    def page(
        request: Request, visitor: Visitor, fields: Mapping[str, str], found: Explanation | None, wrong: str | None
    ) -> Response:
        return render(
            request,
            visitor,
            "playground.html",
            status=200 if wrong is None else 422,
            fields={**_BLANK, **fields},
            found=found,
            tiers=[limits.tier for limits in budget.searching_tiers(settings)],
            wrong=wrong,
        )

    @routes.get("/playground")
    def blank(request: Request, *, visitor: Visitor = asking, user: str = "", session: str = "") -> Response:
        visitor.caller.need(KeyScope.RECALL)
        return page(request, visitor, {"user": visitor.only_user or user, "session": session}, None, None)

    @routes.post("/playground")
    async def ask(request: Request, *, visitor: Visitor = asking) -> Response:
        fields = await read_form(request, visitor)
        visitor.caller.need(KeyScope.RECALL)
        try:
            asked = _request(fields)
            visitor.caller.own(asked["user_id"])
            found = await run_in_threadpool(lambda: explainer.explain(**asked))
        except (InvalidInput, Forbidden) as exc:
            return page(request, visitor, fields, None, str(exc))
        return page(request, visitor, fields, found, None)

    return routes


def _request(fields: Mapping[str, str]) -> dict[str, Any]:
    capacity = _whole(fields, "capacity", 100, budget.MOST_TOKENS)
    fill = _whole(fields, "fill", 0, 100)
    request: dict[str, Any] = {
        "user_id": fields.get("user", ""),
        # A session that nobody has, so that all of the user's are searched.
        "session_id": fields.get("session", "") or "console-playground",
        "query": fields.get("query", ""),
        "context_window_capacity": capacity,
        "current_tokens": -(-fill * capacity // 100),
        "style": fields.get("style", "list"),
    }
    if fields.get("active"):
        request["active_from_seq"] = _whole(fields, "active", 0, 2**62)
    if fields.get("k"):
        request["k"] = _whole(fields, "k", 1, MAX_K)
    return request


def _whole(fields: Mapping[str, str], name: str, least: int, most: int) -> int:
    given = fields.get(name, "").strip()
    if not (given.isascii() and given.isdigit() and len(given) < 20 and least <= int(given) <= most):
        raise InvalidInput(name, f"must be a whole number from {least} to {most}")
    return int(given)
