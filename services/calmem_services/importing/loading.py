"""Loading one file: what it is, where an earlier run stopped, and running it to its end."""

from __future__ import annotations

from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import TextIO

from calmem.errors import InvalidInput, TransientError
from calmem.memory import Memory
from calmem.model import ImportCheckpoint, Lane
from calmem.storage.pool import Database
from calmem_services.importing.checkpoints import Checkpoints
from calmem_services.importing.formats import Format, Options, tell
from calmem_services.importing.progress import BadLines, Progress
from calmem_services.importing.reading import Source
from calmem_services.importing.running import Importer, Plan, Report


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked for. `format` None: told from the file. `path` None: a pipe, which cannot be gone on with."""

    path: Path | None
    format: Format | None
    options: Options
    parallel: int
    rate: float
    strict: bool
    restart: bool
    errors: Path | None
    batch_messages: int


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What came of it; `bad_before` counts bad lines before the place where this run went on."""

    format: Format
    report: Report
    resumed_after: int
    bad_before: int
    seconds: float

    @property
    def counts(self) -> dict[str, int]:
        report = self.report
        return {
            "lines": report.units,
            "recorded": report.recorded,
            "already there": report.known,
            "not stored (memory off)": report.not_stored,
            "left out": report.left_out,
            "bad": report.bad + self.bad_before,
        }


def load(file: BufferedReader, request: Request, memory: Memory, database: Database | None, *, out: TextIO) -> Summary:
    """Record the file behind live messages, saying on `out` what it is and how far it got.

    `database`: where it is noted how far it got; None (over HTTP): nowhere, and the same call again begins at the start.
    Raises InvalidInput for a file that cannot be read at all and, with `strict`, for its first bad line;
    TransientError when the database or service is away. What was recorded stays, and the same call again goes on from there.
    """
    source = Source(file)
    plan = _plan(source, request, out)
    checkpoints = None
    # A pipe with a name is still a pipe.
    if database is not None and request.path is not None and source.total_bytes is not None:
        checkpoints = Checkpoints(database, request.path, plan)
    safe = 0

    def keep(at: ImportCheckpoint) -> None:
        nonlocal safe
        if checkpoints is not None:
            checkpoints.save(at)
        safe = at.units

    try:
        at = None
        if checkpoints is not None:
            source, at = _go_on(file, source, checkpoints, request, out)
        resumed_after, bad_before = (at.units, at.bad) if at is not None else (0, 0)
        safe = resumed_after
        if at is not None:
            out.write(f"going on after {plan.form.noun} {at.units}, where an earlier run was interrupted\n")
        progress = Progress(out, source)
        bad_lines = BadLines(progress.say, request.errors, append=at is not None)
        report = Report(bad_lines.note)
        importer = Importer(
            plan,
            lambda batch: memory.record_many(batch, lane=Lane.BACKFILL),
            report,
            on_progress=progress.show,
            on_checkpoint=keep,
            bad_before=bad_before,
        )
        try:
            importer.run(source)
        finally:
            progress.end()
            bad_lines.close()
        if checkpoints is not None:
            checkpoints.remove()
    except TransientError as exc:
        raise TransientError(
            f"stopped after {plan.form.noun} {safe}: {exc}; run the same command again to go on"
        ) from exc
    return Summary(
        format=plan.format,
        report=report,
        resumed_after=resumed_after,
        bad_before=bad_before,
        seconds=progress.seconds,
    )


def _go_on(
    file: BufferedReader, source: Source, checkpoints: Checkpoints, request: Request, out: TextIO
) -> tuple[Source, ImportCheckpoint | None]:
    """The source where the import is to begin, and the checkpoint that this is; None: the beginning."""
    if request.restart:
        checkpoints.remove()
        return source, None
    at = checkpoints.load()
    if at is None or source.skip_to(offset=at.byte_offset, number=at.units, digest=at.digest):
        return source, at
    out.write("the file is another one than when its import was interrupted: from the beginning\n")
    checkpoints.remove()
    file.seek(0)
    return Source(file), None


def _plan(source: Source, request: Request, out: TextIO) -> Plan:
    told, form = tell(source.head)
    chosen = request.format or told
    if chosen is None and form.noun == "line":
        chosen = Format.JSONL  # each of its lines is told what it lacks
    if chosen is None:
        raise InvalidInput("--format", f"cannot be told from the file; name one of {', '.join(Format)}")
    if request.format is None:
        out.write(f"format: {chosen}, told from the file\n")
    return Plan(
        format=chosen,
        form=form,
        options=request.options,
        parallel=request.parallel,
        rate=request.rate,
        strict=request.strict,
        batch_messages=request.batch_messages,
    )
