"""Commands that read and write memory: import, recall, search, facts, users, sessions, messages."""

from __future__ import annotations

from typing import Any

import click

from calmem import paging
from calmem.fates import Candidate, Explanation
from calmem.model import Fact, Item, Receipt, Tier
from calmem.recall import MAX_K
from calmem_services.cli import output
from calmem_services.cli.importing import import_history
from calmem_services.http import wire

_user = click.option("--user", "user_id", required=True, help="Whose memory.")
_session = click.option("--session", "session_id", required=True, help="The session's id.")
_since = click.option("--since", help="Only messages from this time on (ISO 8601 with offset).")
_until = click.option("--until", help="Only messages before this time (ISO 8601 with offset).")


@click.command()
@_user
@_session
@click.option("--current-tokens", default=0, show_default=True, help="Tokens in the model's context now.")
@click.option("--capacity", default=128_000, show_default=True, help="Tokens of the model's context window.")
@click.option("--active-from-seq", type=int, help="Messages of this session from here on are in the context.")
@click.option("--k", type=click.IntRange(1, MAX_K), help="At most so many items.")
@click.option(
    "--style", type=click.Choice(["list", "prose"]), default="list", show_default=True, help="How the block reads."
)
@_since
@_until
@click.option("--explain", is_flag=True, help="Every candidate too: its scores, and why it was kept or dropped.")
@output.as_json
@click.argument("query")
def recall(capacity: int, explain: bool, as_json: bool, **request: Any) -> None:
    """Print the block that a host would inject for QUERY."""
    request["context_window_capacity"] = capacity
    told = None
    if explain:
        with output.explainer() as explainer:
            told = explainer.explain(**request)
        found = told.recall
    else:
        with output.memory() as memory:
            found = memory.recall(**request)
    if as_json:
        output.print_json(wire.recall(found) if told is None else wire.explanation(told))
        return
    click.echo(found.block)
    if told is not None:
        click.echo()
        _print_candidates(told)
    note = f", degraded: {found.degraded}" if found.degraded else ""
    click.echo(f"tier {found.tier}, {found.tokens} tokens, {found.timings_ms['total']} ms{note}", err=True)


def _print_candidates(told: Explanation) -> None:
    if not told.candidates:
        click.echo("no candidates: nothing was searched, or nothing found")
        return
    rows = [_candidate_row(one, told.recall.tier) for one in told.candidates]
    output.print_table(rows, ["score", "cosine", "bm25", "session", "seq", "what became of it", "text"])


def _candidate_row(one: Candidate, tier: Tier) -> tuple[str, ...]:
    item = one.item
    score = f"{item.score:.3f}" if item.reasons else "-"
    arms = [f"{item.scores[arm]:.3f}" if arm in item.scores else "-" for arm in ("cosine", "bm25")]
    return score, *arms, item.session_id, str(item.seq), one.fates[tier].meaning, " ".join(item.text.split())


@click.command()
@_user
@click.option("--session", "session_id", help="Only in this session.")
@click.option("--k", default=10, show_default=True, type=click.IntRange(1, MAX_K), help="At most so many items.")
@_since
@_until
@output.as_json
@click.argument("query")
def search(as_json: bool, **request: Any) -> None:
    """Print what is found for QUERY, best first."""
    with output.memory() as memory:
        items = memory.search(**request)
    if as_json:
        output.print_json([wire.item(item) for item in items])
    else:
        output.print_table([_item_row(item) for item in items], ["score", "when", "session", "who", "text"])


def _item_row(item: Item) -> tuple[str, ...]:
    when = item.created_at.isoformat(" ", "minutes")
    return f"{item.score:.3f}", when, item.session_id, item.name or item.role, " ".join(item.text.split())


@click.group()
def facts() -> None:
    """Exact key-value statements of a user."""


@facts.command("list")
@_user
@click.option("--session", "session_id", help="Only of this session.")
@click.option("--pattern", help="Glob over the whole key: * ? [abc]; % and _ are themselves.")
@click.option("--category", help="Only of this category.")
@output.as_json
def list_facts(as_json: bool, **request: Any) -> None:
    """A user's facts, newest write first; expired ones are left out."""
    with output.memory() as memory:
        found = memory.recall_facts(**request)
    _print_facts(found, as_json)


def _print_facts(found: list[Fact], as_json: bool) -> None:
    if as_json:
        output.print_json([wire.fact(fact) for fact in found])
    else:
        output.print_table(
            [(f.session_id, f.category, f.key, f.value) for f in found], ["session", "category", "key", "value"]
        )


@facts.command("set")
@_user
@_session
@click.option("--category", help="Default: general.")
@click.option("--expires-at", help="ISO 8601 with offset.")
@output.as_json
@click.argument("key")
@click.argument("value")
def set_fact(as_json: bool, **request: Any) -> None:
    """Write KEY = VALUE; the value it replaces is kept as history."""
    with output.memory() as memory:
        stored = memory.remember_fact(**request, source="cli")
    if as_json:
        output.print_json({"stored": False} if stored is None else {"stored": True, **wire.fact(stored)})
    else:
        click.echo("stored" if stored is not None else "not stored: this user's memory is off")


@facts.command("forget")
@_user
@_session
@output.as_json
@click.argument("key")
def forget_fact(as_json: bool, **request: Any) -> None:
    """Remove a fact and its history."""
    with output.memory() as memory:
        _print_receipt(memory.forget_fact(**request), as_json)


@facts.command("history")
@_user
@_session
@output.as_json
@click.argument("key")
def fact_history(as_json: bool, **request: Any) -> None:
    """Values that later writes replaced, oldest first."""
    with output.memory() as memory:
        versions = memory.fact_history(**request)
    rows = [wire.fact_version(version) for version in versions]
    if as_json:
        output.print_json(rows)
    else:
        header = ["written_at", "superseded_at", "category", "value"]
        output.print_table([[row[name] for name in header] for row in rows], header)


@click.group()
def users() -> None:
    """A user's switch, time zone and deletion."""


@users.command("get")
@_user
def get_user(user_id: str) -> None:
    """The user's switch and time zone, as JSON."""
    with output.memory() as memory:
        output.print_json(wire.user(memory.get_user(user_id)))


@users.command("set")
@_user
@click.option("--memory", "switch", type=click.Choice(["on", "off"]), help="Off: nothing is written, read or injected.")
@click.option("--time-zone", help="IANA name, such as Asia/Shanghai.")
def set_user(user_id: str, switch: str | None, time_zone: str | None) -> None:
    """Create the user or change what is given."""
    if switch is None and time_zone is None:
        raise click.UsageError("give --memory, --time-zone or both")
    with output.memory() as memory:
        output.print_json(wire.user(memory.put_user(user_id, memory=switch, time_zone=time_zone)))


@users.command("delete")
@_user
@click.confirmation_option(prompt="Remove everything of this user?")
@output.as_json
def delete_user(user_id: str, as_json: bool) -> None:
    """Remove everything of a user."""
    with output.memory() as memory:
        _print_receipt(memory.delete_user(user_id), as_json)


@click.group()
def sessions() -> None:
    """A user's sessions."""


@sessions.command("list")
@_user
@output.as_json
def list_sessions(user_id: str, as_json: bool) -> None:
    """All sessions, oldest first."""
    with output.memory() as memory:
        rows = [wire.session(session) for session in paging.collect(lambda at: memory.sessions(user_id, cursor=at))]
    if as_json:
        output.print_json(rows)
    else:
        header = ["session_id", "messages", "first_at", "last_at"]
        output.print_table([[row[name] for name in header] for row in rows], header)


@sessions.command("delete")
@_user
@_session
@click.confirmation_option(prompt="Remove this session with its messages and facts?")
@output.as_json
def delete_session(user_id: str, session_id: str, as_json: bool) -> None:
    """Remove a session."""
    with output.memory() as memory:
        _print_receipt(memory.delete_session(user_id, session_id), as_json)


@click.group()
def messages() -> None:
    """The messages of a session."""


@messages.command("list")
@_user
@_session
@output.as_json
def list_messages(user_id: str, session_id: str, as_json: bool) -> None:
    """A session's messages in the order they were recorded in."""
    with output.memory() as memory:
        found = paging.collect(lambda at: memory.messages(user_id, session_id, cursor=at))
    shown = [wire.message(message) for message in found]
    if as_json:
        output.print_json(shown)
    else:
        rows = [(m["seq"], m["created_at"], m["name"] or m["role"], " ".join(m["content"].split())) for m in shown]
        output.print_table(rows, ["seq", "when", "who", "text"])


@messages.command("delete")
@_user
@output.as_json
@click.argument("message_id")
def delete_message(user_id: str, message_id: str, as_json: bool) -> None:
    """Remove one message and everything derived from it."""
    with output.memory() as memory:
        _print_receipt(memory.delete_message(user_id, message_id), as_json)


def _print_receipt(receipt: Receipt, as_json: bool) -> None:
    if as_json:
        output.print_json({"removed": dict(receipt.removed)})
    else:
        click.echo("removed: ", nl=False)
        output.print_counts(receipt.removed)


COMMANDS = (import_history, recall, search, facts, users, sessions, messages)
