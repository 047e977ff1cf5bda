"""Pages that only show: overview, users, a user's sessions, turns, facts, and failed messages."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import RedirectResponse, Response

from calmem.browsing import Browser
from calmem.facts import Facts
from calmem.failures import Failures
from calmem.model import KeyScope, Lane
from calmem.queueing import WakeUps
from calmem.settings import Settings
from calmem.storage import backlog, stats
from calmem.storage.pool import Database
from calmem.users import Users
from calmem_services.console.gate import Gate, Visitor
from calmem_services.console.pages import render
from calmem_services.http.figures import figures_url, read_figures

PAGE = 50
# Of a longer message that much is shown until it is asked for alone.
SHOWN_CHARS = 2_000

User = Annotated[str, Query(alias="user")]
Session = Annotated[str, Query(alias="session")]
Cursor = Annotated[str | None, Query()]


def router(gate: Gate, database: Database, settings: Settings) -> APIRouter:
    """All of them; what one shows of a user needs the scope `recall`, of facts the scope `facts`."""
    routes = APIRouter(include_in_schema=False)
    browser, users, facts = Browser(database), Users(database), Facts(database)
    failures = Failures(database, WakeUps(settings.redis_url))
    asking = Depends(gate.visitor)

    @routes.get("/")
    def overview(request: Request, *, visitor: Visitor = asking) -> Response:
        if visitor.only_user is not None:  # the figures are everybody's
            home = "/user" if visitor.may(KeyScope.RECALL) else "/facts"
            return RedirectResponse(f"{home}?mine=1", status_code=HTTPStatus.SEE_OTHER)
        with database.connection() as conn:
            queue, rows = backlog.queue_state(conn), stats.counts(conn)
        source = figures_url(settings)
        return render(
            request,
            visitor,
            "overview.html",
            queue=queue,
            lanes={lane.value: queue.pending_by_lane[lane] for lane in Lane},
            late=queue.live_seconds > settings.degraded_after_seconds,
            rows=rows,
            figures=read_figures(source),
            source=source,
        )

    @routes.get("/users")
    def all_users(
        request: Request, *, visitor: Visitor = asking, starts_with: str = "", cursor: Cursor = None
    ) -> Response:
        visitor.caller.need(KeyScope.RECALL)
        if visitor.only_user is not None:
            return RedirectResponse("/user?mine=1", status_code=HTTPStatus.SEE_OTHER)
        page, following = browser.users(starts_with=starts_with, cursor=cursor, limit=PAGE)
        return render(
            request, visitor, "users.html", users=page, following=following, starts_with=starts_with, cursor=cursor
        )

    @routes.get("/user")
    def one_user(
        request: Request, *, visitor: Visitor = asking, user: str = "", mine: bool = False, cursor: Cursor = None
    ) -> Response:
        visitor.caller.need(KeyScope.RECALL)
        user_id = _whose(visitor, user, mine)
        page, following = users.sessions(user_id, cursor=cursor, limit=PAGE)
        return render(
            request,
            visitor,
            "user.html",
            user=users.get(user_id),
            counts=browser.counts(user_id),
            sessions=page,
            following=following,
            cursor=cursor,
        )

    @routes.get("/session")
    def one_session(
        request: Request,
        *,
        visitor: Visitor = asking,
        user_id: User,
        session_id: Session,
        first: Annotated[int, Query(alias="from")] = 1,
        active: str = "",
        whole: bool = False,
    ) -> Response:
        visitor.caller.need(KeyScope.RECALL)
        visitor.caller.own(user_id)
        page, following = browser.turns(user_id, session_id, from_seq=first, limit=1 if whole else PAGE)
        return render(
            request,
            visitor,
            "session.html",
            user_id=user_id,
            session_id=session_id,
            turns=page,
            first=first,
            following=following,
            active=int(active) if active.isascii() and active.isdigit() and len(active) < 20 else None,
            shown_chars=None if whole else SHOWN_CHARS,
        )

    @routes.get("/facts")
    def all_facts(
        request: Request, *, visitor: Visitor = asking, user: str = "", mine: bool = False, cursor: Cursor = None
    ) -> Response:
        visitor.caller.need(KeyScope.FACTS)
        if not user and not mine and visitor.only_user is None:
            return render(request, visitor, "facts_of.html")
        user_id = _whose(visitor, user, mine)
        page, following = browser.facts(user_id, cursor=cursor, limit=PAGE)
        return render(
            request,
            visitor,
            "facts.html",
            user=users.get(user_id),
            facts=page,
            following=following,
            cursor=cursor,
        )

    @routes.get("/fact")
    def one_fact(
        request: Request, *, visitor: Visitor = asking, user_id: User, session_id: Session, key: str
    ) -> Response:
        visitor.caller.need(KeyScope.FACTS)
        visitor.caller.own(user_id)
        earlier = facts.history(user_id=user_id, session_id=session_id, key=key)
        live = [fact for fact in facts.recall(user_id=user_id, session_id=session_id) if fact.key == key]
        return render(
            request,
            visitor,
            "fact.html",
            user_id=user_id,
            session_id=session_id,
            key=key,
            fact=live[0] if live else None,
            earlier=earlier,
        )

    @routes.get("/failed")
    def failed(
        request: Request, *, visitor: Visitor = asking, cursor: Cursor = None, retried: int | None = None
    ) -> Response:
        visitor.caller.need(KeyScope.RECALL)
        page, following = failures.page(cursor=cursor, limit=PAGE, user_id=visitor.only_user)
        return render(request, visitor, "failed.html", failed=page, following=following, cursor=cursor, retried=retried)

    return routes


def _whose(visitor: Visitor, user_id: str, mine: bool) -> str:
    """The user that the page is about: with `mine`, the one the key is bound to."""
    if visitor.only_user is not None and (mine or not user_id):
        return visitor.only_user
    visitor.caller.own(user_id)
    return user_id
