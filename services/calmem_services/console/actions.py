"""What changes something: retry, forget, delete, and the off switch. All by POST, with the visitor's form token."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse, Response

from calmem.errors import InvalidInput
from calmem.facts import Facts
from calmem.failures import Failures
from calmem.model import KeyScope, Receipt
from calmem.queueing import WakeUps
from calmem.settings import Settings
from calmem.storage.pool import Database
from calmem.users import Users
from calmem_services.console.gate import Gate, Visitor, read_form
from calmem_services.console.pages import render

_KINDS = {"user": KeyScope.ADMIN, "session": KeyScope.ADMIN, "message": KeyScope.ADMIN, "fact": KeyScope.FACTS}
_SEE = HTTPStatus.SEE_OTHER


def router(gate: Gate, database: Database, settings: Settings) -> APIRouter:
    """Removing needs the scope `admin`, except for a fact, which needs `facts`, as over HTTP."""
    routes = APIRouter(include_in_schema=False)
    users, facts = Users(database), Facts(database)
    failures = Failures(database, WakeUps(settings.redis_url))
    asking = Depends(gate.visitor)

    def remove(kind: str, target: Mapping[str, str]) -> Receipt:
        user_id = target["user"]
        if kind == "user":
            return users.delete_user(user_id)
        if kind == "session":
            return users.delete_session(user_id, target["session"])
        if kind == "message":
            return users.delete_message(user_id, target["message"])
        return facts.forget(user_id=user_id, session_id=target["session"], key=target["key"])

    @routes.get("/delete")
    def confirm(
        request: Request,
        *,
        visitor: Visitor = asking,
        kind: str,
        user: str,
        session: str = "",
        message: str = "",
        key: str = "",
    ) -> Response:
        """Asks before anything is removed; for a user and a session the id has to be typed."""
        visitor.caller.need(_scope(kind))
        visitor.caller.own(user)
        target = {"kind": kind, "user": user, "session": session, "message": message, "key": key}
        return render(request, visitor, "confirm.html", target=target, wrong=False)

    @routes.post("/delete")
    async def delete(request: Request, *, visitor: Visitor = asking) -> Response:
        fields = await read_form(request, visitor)
        target = {name: fields.get(name, "") for name in ("kind", "user", "session", "message", "key")}
        kind = target["kind"]
        visitor.caller.need(_scope(kind))
        visitor.caller.own(target["user"])
        if kind in ("user", "session") and fields.get("typed") != target[kind]:
            status = HTTPStatus.UNPROCESSABLE_ENTITY
            return render(request, visitor, "confirm.html", status=status, target=target, wrong=True)
        receipt = await run_in_threadpool(remove, kind, target)
        return render(request, visitor, "removed.html", target=target, removed=receipt.removed)

    @routes.post("/memory")
    async def switch(request: Request, *, visitor: Visitor = asking) -> Response:
        fields = await read_form(request, visitor)
        visitor.caller.need(KeyScope.ADMIN)
        user_id = fields.get("user", "")
        visitor.caller.own(user_id)
        await run_in_threadpool(users.put, user_id, memory=fields.get("memory", ""))
        return RedirectResponse(f"/user?{urlencode({'user': user_id})}", status_code=_SEE)

    @routes.post("/retry")
    async def retry(request: Request, *, visitor: Visitor = asking) -> Response:
        """One failed message, or with an empty `message` all of them."""
        fields = await read_form(request, visitor)
        visitor.caller.need(KeyScope.ADMIN)
        one = fields.get("message") or None
        count = await run_in_threadpool(failures.retry, one, user_id=visitor.only_user)
        return RedirectResponse(f"/failed?retried={count}", status_code=_SEE)

    return routes


def _scope(kind: str) -> KeyScope:
    if kind not in _KINDS:
        raise InvalidInput("kind", f"must be one of {', '.join(_KINDS)}")
    return _KINDS[kind]
