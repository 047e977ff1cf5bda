"""Templates: rendered with autoescape, so that stored text is always shown as text."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from calmem.model import KeyScope
from calmem_services.console.gate import FORM_TOKEN, Visitor, keep

FOLDER = Path(__file__).parent


def _moment(moment: datetime | None) -> str:
    return "–" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def _duration(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _link(path: str, **query: object) -> str:
    """A path with those parameters that are not None, escaped for a URL."""
    given = {name.rstrip("_"): value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"moment": _moment, "duration": _duration}
    made.globals["link"] = _link
    return made


_ENVIRONMENT = _environment()
_HIDDEN = Markup('<input type="hidden" name="{}" value="{}">')


def render(
    request: Request, visitor: Visitor | None, template: str, *, status: int = 200, **values: object
) -> HTMLResponse:
    """The page. `visitor` None: an error page, which shows nothing of anybody."""
    may = {scope.value: visitor is not None and visitor.may(scope) for scope in KeyScope}

    def token() -> Markup:
        return _HIDDEN.format(FORM_TOKEN, "" if visitor is None else visitor.form_token)

    page = _ENVIRONMENT.get_template(template)
    text = page.render(visitor=visitor, may=may, token=token, here=request.url.path, **values)
    response = HTMLResponse(text, status_code=status)
    if visitor is not None:
        keep(request, response, visitor)
    return response
