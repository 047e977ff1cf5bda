"""The gateway in this process, before a scripted upstream, over a test's own servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import openai
import psycopg

from calmem.settings import Settings
from calmem_services.gateway.app import create_app
from tests.support.http import client
from tests.support.processes import eventually
from tests.support.upstream import ScriptedUpstream, scripted_upstream

Row = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True)
class Gated:
    """A client of the gateway, what stands behind it, and the database."""

    http: httpx.Client
    upstream: ScriptedUpstream
    settings: Settings

    def openai(self, *, user: str | None = "ada", session: str | None = "s1") -> openai.OpenAI:
        """The official client; it retries nothing."""
        named = {"X-Calmem-User": user, "X-Calmem-Session": session}
        headers = {name: value for name, value in named.items() if value is not None}
        return openai.OpenAI(
            base_url=f"{self.http.base_url}/v1", api_key="sk-client", default_headers=headers, max_retries=0
        )

    def chat(self, messages: list[Any], *, user: str | None = "ada", session: str | None = "s1", **body: Any) -> str:
        """What the upstream answered to the whole prompt."""
        with self.openai(user=user, session=session) as opened:
            answer = opened.chat.completions.create(model="scripted", messages=messages, **body)
        return answer.choices[0].message.content or ""

    def rows(self) -> list[Row]:
        """(session, role, content) of every message, in order."""
        with psycopg.connect(self.settings.database_url) as conn:
            found = conn.execute(
                "SELECT s.session_id, m.role, m.content FROM messages m JOIN sessions s USING (user_no, session_no)"
                " ORDER BY s.session_id, m.seq"
            )
            return [(str(session), str(role), str(content)) for session, role, content in found]

    def until_rows(self, expected: list[Row]) -> None:
        """What is said is recorded beside the answer, which does not wait for it."""
        eventually(lambda: len(self.rows()) >= len(expected), f"{len(expected)} messages are recorded")
        assert self.rows() == expected

    def memory(self) -> dict[str, float]:
        """How often memory did what, as /metrics counts it."""
        lines = self.http.get("/metrics").text.splitlines()
        found = [line for line in lines if line.startswith("calmem_gateway_chats_total{")]
        return {line.split('"')[1]: float(line.rsplit(" ", 1)[1]) for line in found}


@contextmanager
def gated(settings: Settings, **changes: Any) -> Iterator[Gated]:
    """The gateway, ready with its model loaded."""
    with scripted_upstream() as upstream:
        patient = {"gateway_upstream_url": upstream.url, "gateway_deadline_ms": 30_000}
        chosen = replace(settings, **{**patient, **changes})
        with client(create_app(chosen)) as http:
            eventually(lambda: http.get("/readyz").json()["status"] == "ready", "the gateway is ready")
            yield Gated(http=http, upstream=upstream, settings=chosen)


# Messages as hosts write them, in plain dictionaries; the client's own types know no others.
def user(text: object) -> Any:
    return {"role": "user", "content": text}


def assistant(text: str | None, **more: Any) -> Any:
    return {"role": "assistant", "content": text, **more}


def system(text: str) -> Any:
    return {"role": "system", "content": text}
