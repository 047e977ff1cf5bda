"""Plays the conversation through a stack of its own and prints what is recalled."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import httpx

from calmem.embedding import bundled
from calmem.errors import CalmemError, TransientError
from calmem.settings import Settings
from calmem_services.demo.conversation import TALKS, Talk
from calmem_services.local.ports import free_ports
from calmem_services.local.stack import Stack, run_stack

USER = "mei"
WINDOW = 8_000
# The running session's last turns that still fit into the model's context; all before them are compacted.
STILL_ACTIVE = 12
_INDEX_SECONDS = 180.0


def play(settings: Settings) -> None:
    """Everything in a temporary directory; nothing is left running. Raises CalmemError when memory fails to show itself."""
    with tempfile.TemporaryDirectory(prefix="calmem-demo-") as directory:
        ingest_port, retrieval_port = free_ports(2)
        click.echo("Preparing the model …")
        model_path = settings.model_path or _model_directory(settings)
        own = replace(
            settings,
            database_url="",
            redis_url="",
            data_dir=directory,
            model_path=model_path,
            ingest_port=ingest_port,
            retrieval_port=retrieval_port,
            # Shared and busy machines: the demonstration shows what is recalled, not how fast.
            recall_deadline_ms=max(settings.recall_deadline_ms, 5_000),
        )
        click.echo("Starting Postgres, Redis, ingest, retrieval, a worker and the sweeper …")
        log = Path(directory) / "processes.log"
        with log.open("ab") as log_file, run_stack(own, console=False, log_file=log_file) as stack:
            try:
                _play(stack)
            except (CalmemError, httpx.HTTPError):
                click.echo(log.read_text("utf-8", "replace")[-4_000:], err=True)
                raise
    click.echo("\nDone. Everything that was started has been stopped.")


def _model_directory(settings: Settings) -> str:
    """Prepared once in the normal data directory, not in the temporary one; "" lets the processes find it themselves."""
    return str(bundled.prepare(settings.data_path / "models")) if bundled.installed() else ""


def _play(stack: Stack) -> None:
    with httpx.Client(timeout=60, trust_env=False) as http:
        turns = 0
        for talk in TALKS:
            messages = _messages(talk)
            _post(http, f"{stack.ingest_url}/v1/messages:batch", {"messages": messages})
            turns += len(messages)
        click.echo(f"Recorded {turns} turns in {len(TALKS)} sessions over five weeks.")
        _put_fact(http, stack, TALKS[-1], "menu_style", "one plain line per tea, no poetry")
        _put_fact(http, stack, TALKS[0], "shop_address", "Harbour Street 12")
        _wait_until_indexed(http, stack, turns)
        _show(http, stack)


def _messages(talk: Talk) -> list[dict[str, Any]]:
    return [
        {
            "user_id": USER,
            "session_id": talk.session_id,
            "message_id": f"{talk.session_id}-{number}",
            "role": "assistant" if number % 2 else "user",
            "content": line,
            "created_at": (talk.begins + timedelta(seconds=40 * number)).isoformat(),
        }
        for number, line in enumerate(talk.lines)
    ]


def _wait_until_indexed(http: httpx.Client, stack: Stack, turns: int) -> None:
    began = time.monotonic()
    while time.monotonic() - began < _INDEX_SECONDS:
        if http.get(f"{stack.retrieval_url}/readyz").json()["pending"] == 0:
            click.echo(f"Indexed {turns} turns in {time.monotonic() - began:.1f} s.")
            return
        time.sleep(0.1)
    raise TransientError(f"the worker did not index {turns} turns within {_INDEX_SECONDS:.0f} s")


def _show(http: httpx.Client, stack: Stack) -> None:
    running = TALKS[-1]
    active_from = len(running.lines) - STILL_ACTIVE + 1
    click.echo(
        f"The running session has {len(running.lines)} turns; the first {active_from - 1} are compacted: "
        "out of the model's window, not out of memory."
    )

    def ask(title: str, query: str, *expected: str, fill: float = 0.3, **request: Any) -> None:
        body = {
            "user_id": USER,
            "session_id": running.session_id,
            "query": query,
            "current_tokens": int(fill * WINDOW),
            "context_window_capacity": WINDOW,
            "active_from_seq": active_from,
            **request,
        }
        answer = _post(http, f"{stack.retrieval_url}/v1/recall", body)
        click.secho(f"\n== {title}", bold=True)
        click.echo(f"   asked: {query}")
        click.echo(f"   fill ratio {answer['fill_ratio']:.2f}, tier {answer['tier']}, {answer['tokens']} tokens\n")
        click.echo(answer["block"])
        for text in expected:
            if text not in answer["block"]:
                raise TransientError(f"the block should hold {text!r}")
        if answer["degraded"]:
            raise TransientError(f"recall was degraded: {answer['degraded']}")

    decision = "SQLite with a movements table"
    question = "Which database did we decide on, and how are weights stored?"
    for fill, tier, expected in (
        (0.30, "full", decision),
        (0.60, "reduced", decision),
        (0.70, "minimal", decision),
        (0.80, "facts only", "one plain line per tea"),
    ):
        ask(f"Tier {tier}: a decision from the compacted part", question, expected, fill=fill)
    ask("An identifier", "what happened with order SF-123456789?", "SF123456789", k=3)
    ask("From an earlier session", "Is there anything I am allergic to?", "walnuts", k=3)
    _ask_for_fact(http, stack, "shop_*", "Harbour Street 12")
    ask("In Chinese", "我叔叔叫什么，住在哪里？", "周建国", k=3)
    ask(
        "A new user",
        "What do you know about me?",
        "Nothing is remembered",
        user_id="noor",
        session_id="first",
        active_from_seq=None,
    )


def _put_fact(http: httpx.Client, stack: Stack, talk: Talk, key: str, value: str) -> None:
    url = f"{stack.retrieval_url}/v1/sessions/{talk.session_id}/facts/{key}"
    _checked(http.put(url, json={"user_id": USER, "value": value}))


def _ask_for_fact(http: httpx.Client, stack: Stack, pattern: str, expected: str) -> None:
    """Facts of other sessions come only when asked for; the block of this session does not hold them."""
    click.secho("\n== A fact set in one session, asked for in another", bold=True)
    click.echo(f"   asked: facts {pattern}\n")
    answer = _checked(http.get(f"{stack.retrieval_url}/v1/facts", params={"user_id": USER, "pattern": pattern}))
    for fact in answer["facts"]:
        click.echo(f"{fact['key']} = {fact['value']}   (session {fact['session_id']})")
    if expected not in [fact["value"] for fact in answer["facts"]]:
        raise TransientError(f"the facts should hold {expected!r}")


def _post(http: httpx.Client, url: str, body: dict[str, Any]) -> Any:
    return _checked(http.post(url, json=body))


def _checked(answer: httpx.Response) -> Any:
    if answer.is_error:
        raise TransientError(f"{answer.url} answered {answer.status_code}: {answer.text[:300]}")
    return answer.json()
