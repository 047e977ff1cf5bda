"""`calmem import`: existing history from a file."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, cast

import click

from calmem.storage.pool import Database
from calmem.text import clean_id, parse_time
from calmem_services.cli import output
from calmem_services.importing.formats import Format, Options
from calmem_services.importing.loading import Request, load
from calmem_services.importing.running import BATCH_MESSAGES


@click.command("import")
@click.argument("file", type=click.File("rb"))
@click.option(
    "--format",
    "format_",
    type=click.Choice([*(one.value for one in Format), "auto"]),
    default="auto",
    show_default=True,
    help="What FILE is.",
)
@click.option("--user", "user_id", help="Whose history it is; needed for exports, which name no user.")
@click.option("--session", "session_id", help="openai: the session of a single list of messages.")
@click.option("--created-at", help="Time of messages without one (ISO 8601 with offset; default: now).")
@click.option("--parallel", type=click.IntRange(1, 64), default=2, show_default=True, help="Sessions recorded at once.")
@click.option("--rate", type=click.FloatRange(0), default=0, help="At most so many messages a second; 0: no limit.")
@click.option("--strict", is_flag=True, help="End at the first bad line instead of skipping it.")
@click.option("--errors", type=click.Path(dir_okay=False, path_type=Path), help="Write all bad lines to this file.")
@click.option("--restart", is_flag=True, help="From the beginning, also after an interruption.")
@output.as_json
def import_history(
    file: BinaryIO,
    format_: str,
    user_id: str | None,
    session_id: str | None,
    created_at: str | None,
    parallel: int,
    rate: float,
    strict: bool,
    errors: Path | None,
    restart: bool,
    as_json: bool,
) -> None:
    """Load existing history from FILE (- for stdin), of any size, plain or .gz.

    \b
    jsonl    one message a line, in the order it was said
    chatgpt  conversations.json of ChatGPT's export
    claude   conversations.json of Claude's export
    openai   a list of messages as chat APIs take them, one a line, or {"messages": […]} a line

    jsonl needs user_id, session_id, role and content; message_id, name, created_at (ISO 8601 with offset) and metadata
    may be left out:

    {"user_id": "mei", "session_id": "s1", "role": "user", "content": "…", "created_at": "2025-09-27T10:00:00+02:00"}

    Safe to run twice, and after an interruption it goes on where it was (over HTTP: from the beginning): a message that is there already is counted,
    not doubled. Messages are indexed behind live ones. A bad line is named on stderr and skipped, and the exit code is
    then 1; with --strict nothing after it is recorded, and the exit code is 2.
    """
    chosen = output.settings()
    request = Request(
        path=None if file.name == "<stdin>" else Path(file.name),
        format=None if format_ == "auto" else Format(format_),
        options=Options(
            user_id=None if user_id is None else clean_id(user_id, field="--user"),
            session_id=None if session_id is None else clean_id(session_id, field="--session"),
            created_at=None if created_at is None else parse_time(created_at, field="--created-at"),
            file_name=Path(file.name).name,
        ),
        parallel=parallel,
        rate=rate,
        strict=strict,
        restart=restart,
        errors=errors,
        batch_messages=min(BATCH_MESSAGES, chosen.batch_messages),
    )
    with output.memory() as memory, ExitStack() as stack:
        database = stack.enter_context(Database(chosen)) if chosen.database_url else None
        summary = load(cast(BufferedReader, file), request, memory, database, out=sys.stderr)
    if as_json:
        output.print_json(
            {
                "format": summary.format,
                **summary.counts,
                "resumed after": summary.resumed_after,
                "seconds": round(summary.seconds, 1),
            }
        )
    else:
        output.print_counts(summary.counts)
    if summary.counts["bad"]:
        sys.exit(1)
