"""Every default of calmem in one frozen value; the only reader of the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from calmem.errors import InvalidInput

PREFIX = "CALMEM_"
# Of any number: what the servers behind take as a time in milliseconds, or a count.
_LARGEST = 2**31 - 1
_LARGEST_PORT = 65_535


def _setting(default: Any, meaning: str, *, secret: bool = False, most: int = _LARGEST) -> Any:
    return field(default=default, metadata={"meaning": meaning, "secret": secret, "most": most})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One field per setting; the environment variable is `CALMEM_` + the field's name in capitals."""

    database_url: str = _setting(
        "", "Postgres with pgvector, postgresql://…; empty: the embedded one of `calmem up`", secret=True
    )
    redis_url: str = _setting("", "Redis of the queue, redis://… or unix://…; empty: the embedded one", secret=True)
    ingest_url: str = _setting("", "for clients without a database: the ingest service, http://host:8101")
    retrieval_url: str = _setting("", "for clients without a database: the retrieval service, http://host:8102")
    api_key: str = _setting("", "for clients over HTTP: a key of `calmem keys create`", secret=True)
    client_timeout_seconds: float = _setting(30.0, "for clients over HTTP: longest wait for an answer")
    model: str = _setting("sentence-transformers/all-MiniLM-L6-v2", "embedding model of a new index")
    model_path: str = _setting("", "directory with model.onnx and tokenizer files; before bundled and downloaded ones")
    data_dir: str = _setting("~/.calmem", "embedded servers' data, prepared models")
    log_level: str = _setting("info", "debug, info, warning or error")
    log_text: bool = _setting(False, "write messages, queries and blocks into the logs (debugging only)")
    runtime: str = _setting(
        "auto",
        "what runs the model: fastembed, openvino, or auto (openvino where installed and the processor has bf16)",
    )
    embed_threads: int = _setting(1, "threads of the embedding runtime per process")
    host: str = _setting("127.0.0.1", "address the services bind to")
    ingest_port: int = _setting(8101, "port of the ingest service", most=_LARGEST_PORT)
    retrieval_port: int = _setting(8102, "port of the retrieval service", most=_LARGEST_PORT)
    gateway_port: int = _setting(8103, "port of the gateway", most=_LARGEST_PORT)
    gateway_upstream_url: str = _setting("", "the OpenAI-compatible server behind the gateway, up to and with /v1")
    gateway_upstream_key: str = _setting("", "its key; empty: each client's own is handed on", secret=True)
    gateway_inject: str = _setting(
        "system", "where the block goes: system (end of the system prompt) or before_last_user"
    )
    gateway_window_tokens: int = _setting(
        128_000, "the model's window behind the gateway, tokens as calmem counts them"
    )
    gateway_compact_at: float = _setting(0.8, "fill ratio at which the gateway drops the oldest exchanges")
    gateway_compact_to: float = _setting(0.5, "fill ratio down to which it drops them")
    gateway_summary: str = _setting(
        "upstream", "who summarises what was dropped: upstream or extractive (first sentences)"
    )
    gateway_summary_tokens: int = _setting(400, "longest summary; never more than a tenth of the window")
    gateway_deadline_ms: int = _setting(500, "time memory may add to a chat request; later it passes unchanged")
    gateway_timeout_seconds: float = _setting(600.0, "longest silence of the upstream")
    console_port: int = _setting(8104, "port of the web console", most=_LARGEST_PORT)
    console_login_hours: float = _setting(12.0, "how long a login to the web console lasts")
    mcp_port: int = _setting(8105, "port of the MCP server over HTTP", most=_LARGEST_PORT)
    mcp_user: str = _setting("", "whose memory `calmem mcp` over stdio opens")
    mcp_session: str = _setting("", "session that facts from MCP are written to; empty: one of the user's own")
    metrics_port: int = _setting(
        0, "port on which a worker or sweeper serves /metrics, on CALMEM_HOST; 0: none", most=_LARGEST_PORT
    )
    allow_open: bool = _setting(False, "serve on any address without API keys; only behind your own proxy")
    rate_limit_per_minute: int = _setting(0, "requests of one API key per minute, counted in Redis; 0: no limit")
    max_concurrent_requests: int = _setting(8, "requests that ingest and retrieval each work on at once per process")
    max_waiting_requests: int = _setting(
        256, "requests that wait for their turn beyond these; more are answered 503 at once"
    )
    pool_size: int = _setting(10, "database connections per process")
    pool_wait_seconds: float = _setting(5.0, "longest wait for a database connection")
    connect_timeout_seconds: int = _setting(5, "longest wait for a new database connection")
    network_timeout_seconds: int = _setting(
        10, "silence after which Postgres or Redis counts as cut off, and the server ends what we held there"
    )
    record_timeout_seconds: float = _setting(25.0, "longest time a recording may take in the database")
    message_bytes: int = _setting(1_048_576, "largest message, bytes of UTF-8")
    batch_messages: int = _setting(1_000, "most messages in one record_many")
    chunk_chars: int = _setting(1_000, "longest chunk, code points")
    overlap_chars: int = _setting(200, "overlap of neighbouring chunks, code points")
    claim_messages: int = _setting(256, "messages a worker leases at once")
    lease_seconds: float = _setting(60.0, "a worker's lease on its messages")
    max_attempts: int = _setting(5, "attempts before a message is set aside")
    sweep_seconds: float = _setting(5.0, "pause between two rounds of the sweeper")
    degraded_after_seconds: float = _setting(
        120.0, "age of the oldest pending live message at which /readyz reports degraded"
    )
    recall_deadline_ms: int = _setting(300, "time a recall may take; it answers with what it has")
    min_cosine: float = _setting(0.4, "least cosine of a hit found by meaning alone", most=1)
    candidates: int = _setting(200, "hits taken from each arm of the search")
    cache_megabytes: int = _setting(0, "memory of the retrieval process for users' vectors; 0: search in Postgres only")
    full_episode_tokens: int = _setting(900, "tier full: tokens of episodes")
    full_block_tokens: int = _setting(1_200, "tier full: tokens of the whole block")
    reduced_episode_tokens: int = _setting(400, "tier reduced: tokens of episodes")
    reduced_block_tokens: int = _setting(700, "tier reduced: tokens of the whole block")
    minimal_episode_tokens: int = _setting(130, "tier minimal: tokens of episodes")
    minimal_block_tokens: int = _setting(450, "tier minimal: tokens of the whole block")
    facts_block_tokens: int = _setting(300, "tier facts_only: tokens of the whole block")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read `CALMEM_…`; an empty variable counts as not set.

        Raises InvalidInput naming the variable when a value has the wrong type or range.
        """
        env = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        for setting in fields(cls):
            raw = env.get(variable(setting.name), "")
            if raw != "":
                values[setting.name] = _parse(
                    variable(setting.name), raw, type(setting.default), setting.metadata["most"]
                )
        return cls(**values)

    def url(self, port: int) -> str:
        """Where what listens on `host` and this port is reached from this machine."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{port}"

    @property
    def data_path(self) -> Path:
        return Path(self.data_dir).expanduser()


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


def unknown(environ: Mapping[str, str]) -> dict[str, str | None]:
    """The variables that look like a setting and are none, each with the setting that was probably meant."""
    known = [variable(setting.name) for setting in fields(Settings)]
    strange = sorted(name for name in environ if name.startswith(PREFIX) and name not in known)
    return {name: next(iter(get_close_matches(name, known, n=1, cutoff=0.8)), None) for name in strange}


def _parse(name: str, raw: str, kind: type, most: int) -> Any:
    if kind is bool:
        if raw.lower() in ("1", "true", "yes", "on"):
            return True
        if raw.lower() in ("0", "false", "no", "off"):
            return False
        raise InvalidInput(name, f"must be true or false, not {raw!r}")
    if kind in (int, float):
        try:
            number = kind(raw)
        except ValueError:
            number = -1
        if not 0 <= number <= most:
            number_kind = "whole number" if kind is int else "number"
            raise InvalidInput(name, f"must be a {number_kind} from 0 to {most}, not {raw!r}")
        return number
    return raw
