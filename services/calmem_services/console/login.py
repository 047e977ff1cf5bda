"""Logging in and out."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse, Response

from calmem.errors import Unauthorized
from calmem_services.console.gate import LOGIN_COOKIE, Gate, read_form, set_cookie
from calmem_services.console.pages import render


def router(gate: Gate) -> APIRouter:
    """`/login` and `/logout`."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/login")
    async def ask(request: Request) -> Response:
        try:
            await gate.visitor(request)
        except Unauthorized:
            return render(request, gate.stranger(request), "login.html", wrong=False)
        return RedirectResponse("/", status_code=HTTPStatus.SEE_OTHER)

    @routes.post("/login")
    async def log_in(request: Request) -> Response:
        stranger = gate.stranger(request)
        fields = await read_form(request, stranger)
        try:
            token = await gate.log_in(request, fields.get("key", ""))
        except Unauthorized:
            return render(request, stranger, "login.html", status=HTTPStatus.UNAUTHORIZED, wrong=True)
        response = RedirectResponse("/", status_code=HTTPStatus.SEE_OTHER)
        set_cookie(request, response, LOGIN_COOKIE, token)
        return response

    @routes.post("/logout")
    async def log_out(request: Request) -> Response:
        await read_form(request, await gate.visitor(request))
        await run_in_threadpool(gate.log_out, request)
        response = RedirectResponse("/login", status_code=HTTPStatus.SEE_OTHER)
        response.delete_cookie(LOGIN_COOKIE, path="/", httponly=True, samesite="strict")
        return response

    return routes
