"""Structured logs: JSON on stderr, ids and counts, never passwords, and message text only where `log_text` asks for it."""

from __future__ import annotations

import logging
import sys
from typing import TextIO, cast

import structlog

from calmem.errors import InvalidInput
from calmem.settings import Settings

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class _Stderr:
    """Whatever stderr is at the time of writing, so that a program which replaces it keeps its logs."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def configure(settings: Settings) -> None:
    """Set up structlog for this process, and quieten libraries. Raises InvalidInput for an unknown level."""
    level = _LEVELS.get(settings.log_level.lower())
    if level is None:
        raise InvalidInput("CALMEM_LOG_LEVEL", f"must be one of {', '.join(_LEVELS)}")
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(ensure_ascii=False),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _Stderr())),
        cache_logger_on_first_use=True,
    )
    # Libraries log what they were given (URLs, SQL, arguments of jobs): only their warnings pass, as JSON too.
    handler = logging.StreamHandler(_Stderr())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
            ],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(ensure_ascii=False),
            ],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    # rq warns with its job arguments, psycopg.pool with the connection string's host on every failed attempt.
    for name in ("rq.worker", "psycopg.pool"):
        logging.getLogger(name).setLevel(logging.ERROR)
