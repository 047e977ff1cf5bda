"""Routes of the gateway, and the way of one chat request through it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import unquote

import httpx
import structlog
from fastapi import FastAPI, Request
from starlette.datastructures import Headers
from starlette.responses import Response

from calmem import budget, metrics
from calmem.errors import CalmemError, Forbidden, InvalidInput, RateLimited, TransientError, Unauthorized
from calmem.model import KeyScope, Lane, Recall, Tier
from calmem.models import ActiveModel, Models
from calmem.queueing import WakeUps
from calmem.recall import Recaller
from calmem.recording import Recorder
from calmem.settings import Settings
from calmem.storage.pool import Database
from calmem_services.gateway import answers, prompt
from calmem_services.gateway.conversation import Conversation, Turn, answer_turn, read
from calmem_services.gateway.keeper import Keeper
from calmem_services.gateway.summaries import Summaries
from calmem_services.gateway.upstream import Relay, Upstream, error
from calmem_services.gateway.window import Limits, Window, compact
from calmem_services.http import health, problems
from calmem_services.http.access import Access, Caller, remember_caller
from calmem_services.http.app import AccessLog
from calmem_services.http.bodies import read_bytes

log = structlog.get_logger(__name__)

_BODY_BYTES = 67_108_864
_CHAT = "chat/completions"
# What is about to leave the window must be in memory first; a long history that comes all at once may take so long.
_FIRST_RECORD_SECONDS = 10.0
_QUERY_CHARS = 8_000
_DRAIN_SECONDS = 8.0


# What becomes of turns: recorded, or passed over.
_Keep: TypeAlias = Callable[[Conversation, Sequence[Turn], Lane], Coroutine[Any, Any, None]]


@dataclass(frozen=True, kw_only=True)
class _Chat:
    """One chat request whose user is known."""

    raw: bytes
    body: Mapping[str, Any]
    conversation: Conversation
    request: Request


class Gateway:
    """Adds memory to chat requests on their way to the upstream; whatever fails in it, they pass as they came."""

    def __init__(self, settings: Settings, database: Database, models: Models) -> None:
        self._settings = settings
        self._limits = _limits(settings)
        self.access = Access(database, settings, {})
        self._wake_ups = WakeUps(settings.redis_url)
        self._recaller = Recaller(database, settings, models)
        self._keeper = Keeper(Recorder(database, self._wake_ups, settings), settings)
        self._upstream = Upstream(settings)
        self._summaries = Summaries(
            self._upstream, limit_tokens=self._limits.summary_tokens, capacity=self._limits.capacity
        )
        self._running: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Finish what is being recorded, then let go of everything."""
        if self._running:
            await asyncio.wait(self._running, timeout=_DRAIN_SECONDS)
        await self._upstream.close()
        self._recaller.close()

    async def handle(self, request: Request) -> Response:
        """One request below /v1: a chat of a known user with memory, anything else as it is."""
        try:
            caller = await self._identify(request)
        except (Unauthorized, Forbidden, RateLimited) as exc:
            return _refused(exc)
        if caller is None and self._settings.gateway_upstream_key:
            return error(503, "the key cannot be checked now; try again", "service_unavailable")
        path = request.scope["raw_path"].decode("ascii").partition("/v1/")[2]
        if self._settings.gateway_upstream_key and not _is_served(path):
            # With their own key clients may ask for whatever it opens.
            return error(404, f"only /v1/{_CHAT} and /v1/models are served here", "invalid_request_error")
        raw = await read_bytes(request, limit_bytes=_BODY_BYTES)
        if raw is None:
            return error(413, f"the request has more than {_BODY_BYTES} bytes", "invalid_request_error")
        chat = None
        if caller is None:
            metrics.GATEWAY_CHATS.labels("failed").inc()
        elif request.method == "POST" and path.rstrip("/") == _CHAT:
            try:
                chat = await asyncio.to_thread(_read_chat, request, raw)
            except InvalidInput as exc:
                log.info("chat_not_read", field=exc.field)
            except Exception as exc:  # the upstream says what is wrong with it, not we
                log.error("chat_not_read", error=type(exc).__name__, exc_info=exc)
            if chat is None:
                metrics.GATEWAY_CHATS.labels("anonymous").inc()
            else:
                try:
                    caller.own(chat.conversation.user_id)
                except Forbidden as exc:
                    return _refused(exc)
        if request.url.query:
            path = f"{path}?{request.url.query}"
        if chat is None:
            return Relay(self._upstream, self._upstream.request(request.method, path, request.headers.raw, raw))
        return await self._chat(chat, path)

    async def _identify(self, request: Request) -> Caller | None:
        """Who calls, by `X-Calmem-Key`, since `Authorization` is the upstream's; None while that cannot be told.

        Raises Unauthorized, Forbidden, RateLimited.
        """
        seen = {"x-api-key": request.headers.get("x-calmem-key")}
        seen |= {name: request.headers.get(name) for name in ("host", "origin")}
        try:
            async with asyncio.timeout(self._settings.gateway_deadline_ms / 1_000):
                caller = await self.access.identify(
                    Headers({n: value for n, value in seen.items() if value is not None})
                )
        except (TransientError, TimeoutError) as exc:
            log.warning("key_not_checked", error=type(exc).__name__)
            return None
        remember_caller(request.scope, caller)
        caller.need(KeyScope.RECORD)
        caller.need(KeyScope.RECALL)
        return caller

    async def _chat(self, chat: _Chat, path: str) -> Response:
        began = time.perf_counter()
        body, outcome = chat.raw, "failed"
        try:
            body, outcome = await self._with_memory(chat)
        except (CalmemError, TimeoutError) as exc:
            log.warning("chat_without_memory", error=str(exc) or type(exc).__name__)
        except Exception as exc:  # the host's chat goes on, whatever broke here
            log.error("chat_memory_crashed", error=type(exc).__name__, exc_info=exc)
        metrics.GATEWAY_CHATS.labels(outcome).inc()
        metrics.GATEWAY_SECONDS.observe(time.perf_counter() - began)
        sent = self._upstream.request("POST", path, chat.request.headers.raw, body, plain=True)
        keep = self._pass_over if outcome == "off" else self._record
        said = self._start(self._keep_said(chat.conversation, keep))

        def finished(answer: httpx.Response, raw: bytes) -> None:
            if answer.status_code == 200:
                self._start(self._keep_answer(chat.conversation, answer, raw, said, keep))

        return Relay(self._upstream, sent, finished)

    async def _with_memory(self, chat: _Chat) -> tuple[bytes, str]:
        """The body for the upstream and what memory did. Raises when memory cannot be relied on."""
        conversation = chat.conversation
        window = compact(conversation, self._limits)
        missing = self._keeper.unknown(conversation, window.dropped)
        deadline = self._settings.gateway_deadline_ms / 1_000
        if missing:
            # Nothing is recorded of a user whose memory is off, and nothing is dropped either: recall says so below.
            async with asyncio.timeout(max(deadline, _FIRST_RECORD_SECONDS)):
                await asyncio.to_thread(self._keeper.record, conversation, missing, Lane.BACKFILL)
        summary, unwritten = "", False
        if window.dropped:
            session = (conversation.user_id, conversation.session_id)
            said, unwritten = self._summaries.get(session, window.dropped)
            summary = prompt.frame_summary(said, self._limits.summary_tokens)
        async with asyncio.timeout(deadline):
            found, awake = await asyncio.gather(
                asyncio.to_thread(self._recall, conversation, window, budget.tokens(summary)),
                asyncio.to_thread(self._wake_ups.reachable),
            )
        metrics.count_recall(found)
        if found.tier is Tier.OFF:
            return chat.raw, "off"
        if found.degraded is not None:
            raise TransientError(f"recall: {found.degraded}")
        if not awake:
            raise TransientError("Redis cannot be reached")
        if unwritten and self._settings.gateway_summary == "upstream":
            self._start(
                self._summaries.write(
                    session, window.dropped, str(chat.body.get("model", "")), chat.request.headers.raw
                )
            )
        room = self._limits.capacity - window.tokens - budget.tokens(summary)
        block = found.block if found.tokens <= room else ""
        if not block and not window.dropped:
            return chat.raw, "nothing"
        rewritten = prompt.rewrite(
            chat.body,
            dropped={turn.place for turn in window.dropped},
            summary=summary,
            block=block,
            place=self._settings.gateway_inject,
        )
        return prompt.encode(rewritten), "injected"

    def _recall(self, conversation: Conversation, window: Window, summary_tokens: int) -> Recall:
        tokens = window.tokens + summary_tokens
        room = self._limits.capacity - tokens
        return self._recaller.recall(
            user_id=conversation.user_id,
            session_id=conversation.session_id,
            query=conversation.query[:_QUERY_CHARS],
            current_tokens=tokens,
            context_window_capacity=self._limits.capacity,
            active_message_ids=[turn.message_id for turn in window.kept if turn.message_id],
            block_tokens=min(max(room, 1), 1_000_000),
        )

    async def _keep_said(self, conversation: Conversation, keep: _Keep) -> None:
        """What the host has not sent before: older turns behind live messages, the newest first of all."""
        turns = conversation.turns
        newest = next((n for n, turn in reversed([*enumerate(turns)]) if turn.role == "assistant"), -1) + 1
        await keep(conversation, turns[:newest], Lane.BACKFILL)
        await keep(conversation, turns[newest:], Lane.LIVE)

    async def _keep_answer(
        self, conversation: Conversation, answer: httpx.Response, raw: bytes, said: asyncio.Task[None], keep: _Keep
    ) -> None:
        await said
        headers = answer.headers

        def answered() -> list[Turn]:
            message = answers.read_answer(
                raw,
                content_type=headers.get("content-type", ""),
                content_encoding=headers.get("content-encoding", ""),
            )
            with suppress(InvalidInput):
                return [] if message is None else [answer_turn(conversation, message)]
            return []

        await keep(conversation, await asyncio.to_thread(answered), Lane.LIVE)

    async def _pass_over(self, conversation: Conversation, turns: Sequence[Turn], _lane: Lane) -> None:
        """Said while memory is off: not recorded now, nor from a replay when it is on again."""
        self._keeper.pass_over(conversation, turns)

    async def _record(self, conversation: Conversation, turns: Sequence[Turn], lane: Lane) -> None:
        if not self._keeper.unknown(conversation, turns):
            return
        try:
            await asyncio.to_thread(self._keeper.record, conversation, turns, lane)
        except CalmemError as exc:
            # The host replays it with its next request, and it is recorded then.
            metrics.GATEWAY_UNRECORDED.inc()
            log.warning("turns_not_recorded", error=str(exc))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task


def create_app(settings: Settings) -> FastAPI:
    """The gateway over Postgres, Redis, the model and the upstream."""
    database = Database(settings)
    models = Models(settings)
    gateway = Gateway(settings, database, models)

    model = ActiveModel(database, models)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        # Threads that wait for a database that is away must not keep others from answering.
        threads = ThreadPoolExecutor(max_workers=8 * settings.pool_size, thread_name_prefix="gateway")
        asyncio.get_running_loop().set_default_executor(threads)
        with database, model.warming():
            yield
            await gateway.close()

    app = FastAPI(title="calmem gateway", version="1", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.access = gateway.access
    problems.install(app)
    app.add_middleware(AccessLog)
    app.include_router(health.router(database, settings, {"model": model.check}, serves_without=True))
    app.add_route(
        "/v1/{path:path}",
        gateway.handle,
        methods=["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"],
        include_in_schema=False,
    )
    return app


def _limits(settings: Settings) -> Limits:
    at, to = settings.gateway_compact_at, settings.gateway_compact_to
    if not 0 < to < at <= 1:
        raise InvalidInput(
            "CALMEM_GATEWAY_COMPACT_TO", "must lie between 0 and CALMEM_GATEWAY_COMPACT_AT, that at most 1"
        )
    if settings.gateway_inject not in prompt.PLACES:
        raise InvalidInput("CALMEM_GATEWAY_INJECT", f"must be one of {', '.join(prompt.PLACES)}")
    if settings.gateway_summary not in ("upstream", "extractive"):
        raise InvalidInput("CALMEM_GATEWAY_SUMMARY", "must be upstream or extractive")
    capacity = settings.gateway_window_tokens
    if capacity < 500:
        raise InvalidInput("CALMEM_GATEWAY_WINDOW_TOKENS", "must be 500 or more")
    return Limits(
        capacity=capacity,
        compact_at=at,
        compact_to=to,
        summary_tokens=min(settings.gateway_summary_tokens, capacity // 10),
    )


def _refused(exc: Unauthorized | Forbidden | RateLimited) -> Response:
    if isinstance(exc, RateLimited):
        refused = error(429, str(exc), "rate_limit_error")
        refused.headers["retry-after"] = str(exc.retry_after_seconds)
        return refused
    if isinstance(exc, Unauthorized):
        return error(401, f"{exc} (here in the header X-Calmem-Key)", "authentication_error")
    return error(403, str(exc), "permission_error")


def _is_served(path: str) -> bool:
    parts = unquote(path).rstrip("/").split("/")
    return parts == _CHAT.split("/") or (parts[0] == "models" and not {".", ".."} & set(parts))


def _read_chat(request: Request, raw: bytes) -> _Chat | None:
    """The request as a conversation; None when it names no user. Raises InvalidInput when it is none."""
    user = _header(request, "x-calmem-user")
    if user is None and b'"user"' not in raw:
        return None
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as exc:
        raise InvalidInput("body", "must be a JSON object") from exc
    if not isinstance(body, dict):
        raise InvalidInput("body", "must be a JSON object")
    user = user or body.get("user")
    if user is None or user == "":
        return None
    session = _header(request, "x-calmem-session")
    return _Chat(raw=raw, body=body, conversation=read(body, user_id=user, session_id=session), request=request)


def _header(request: Request, name: str) -> str | None:
    """A header's text, by its bytes in UTF-8; None when it is missing or empty."""
    value = request.headers.get(name, "")
    with suppress(UnicodeDecodeError):
        value = value.encode("latin-1").decode("utf-8")
    return value or None
