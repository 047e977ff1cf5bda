"""The front door in Python: one object for a host process, sync and async."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from calmem.backend import Backend, FactFilter, FactRequest, RecallRequest, SearchRequest
from calmem.errors import InvalidInput, PermanentError
from calmem.model import Fact, FactVersion, Item, Lane, Message, Recall, Receipt, Recorded, Session, User
from calmem.paging import PAGE
from calmem.settings import Settings

P = ParamSpec("P")
R = TypeVar("R")


class Memory:
    """Memory over Postgres and Redis, or over the HTTP services. Safe to share between threads; close it at the end.

    With `ingest_url` and `retrieval_url` (and an `api_key`, where there are keys) it talks to the services, with
    `database_url` and `redis_url` to Postgres and Redis itself. Given none of them, the environment decides:
    `CALMEM_DATABASE_URL` first, else `CALMEM_INGEST_URL` and `CALMEM_RETRIEVAL_URL`. What is missing of the chosen
    ones comes from there too. Calls, answers and errors are the same either way. Nothing is connected before the
    first call.
    """

    def __init__(
        self,
        database_url: str | None = None,
        redis_url: str | None = None,
        *,
        ingest_url: str | None = None,
        retrieval_url: str | None = None,
        api_key: str | None = None,
        settings: Settings | None = None,
    ) -> None:
        """Raises InvalidInput for an address that is none, PermanentError when there is none at all."""
        given: dict[str, Any] = {
            "database_url": database_url,
            "redis_url": redis_url,
            "ingest_url": ingest_url,
            "retrieval_url": retrieval_url,
            "api_key": api_key,
        }
        base = settings or Settings.from_env()
        self._backend = _open(replace(base, **{name: value for name, value in given.items() if value}), given)

    def close(self) -> None:
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def warm(self) -> None:
        """Load the embedding model now, so that the first recall need not wait for it or do without.

        Over HTTP: wait until the retrieval service is ready, at most `client_timeout_seconds`. Raises TransientError,
        and ModelUnavailable where the model is loaded in this process.
        """
        self._backend.warm()

    def record(self, /, *, lane: Lane | str = Lane.LIVE, **fields: Any) -> Recorded:
        """See `calmem.recording.Recorder.record`."""
        return self._backend.record(lane=lane, **fields)

    def record_many(self, messages: Sequence[Mapping[str, Any]], *, lane: Lane | str = Lane.LIVE) -> list[Recorded]:
        """See `calmem.recording.Recorder.record_many`."""
        return self._backend.record_many(messages, lane=lane)

    def recall(self, /, **request: Unpack[RecallRequest]) -> Recall:
        """See `calmem.recall.Recaller.recall`."""
        return self._backend.recall(**request)

    def search(self, /, **request: Unpack[SearchRequest]) -> list[Item]:
        """See `calmem.recall.Recaller.search`."""
        return self._backend.search(**request)

    def remember_fact(self, /, **fact: Unpack[FactRequest]) -> Fact | None:
        """See `calmem.facts.Facts.remember`."""
        return self._backend.remember_fact(**fact)

    def recall_facts(self, /, **wanted: Unpack[FactFilter]) -> list[Fact]:
        """See `calmem.facts.Facts.recall`."""
        return self._backend.recall_facts(**wanted)

    def forget_fact(self, *, user_id: str, session_id: str, key: str) -> Receipt:
        """See `calmem.facts.Facts.forget`."""
        return self._backend.forget_fact(user_id=user_id, session_id=session_id, key=key)

    def fact_history(self, *, user_id: str, session_id: str, key: str) -> list[FactVersion]:
        """See `calmem.facts.Facts.history`."""
        return self._backend.fact_history(user_id=user_id, session_id=session_id, key=key)

    def get_user(self, user_id: str) -> User:
        """See `calmem.users.Users.get`."""
        return self._backend.get_user(user_id)

    def put_user(self, user_id: str, *, memory: str | None = None, time_zone: str | None = None) -> User:
        """See `calmem.users.Users.put`."""
        return self._backend.put_user(user_id, memory=memory, time_zone=time_zone)

    def delete_user(self, user_id: str) -> Receipt:
        """See `calmem.users.Users.delete_user`."""
        return self._backend.delete_user(user_id)

    def delete_session(self, user_id: str, session_id: str) -> Receipt:
        """See `calmem.users.Users.delete_session`."""
        return self._backend.delete_session(user_id, session_id)

    def delete_message(self, user_id: str, message_id: str) -> Receipt:
        """See `calmem.users.Users.delete_message`."""
        return self._backend.delete_message(user_id, message_id)

    def sessions(
        self, user_id: str, *, cursor: str | None = None, limit: int = PAGE
    ) -> tuple[list[Session], str | None]:
        """See `calmem.users.Users.sessions`."""
        return self._backend.sessions(user_id, cursor=cursor, limit=limit)

    def messages(
        self, user_id: str, session_id: str, *, cursor: str | None = None, limit: int = PAGE
    ) -> tuple[list[Message], str | None]:
        """See `calmem.users.Users.messages`."""
        return self._backend.messages(user_id, session_id, cursor=cursor, limit=limit)


def _open(settings: Settings, given: Mapping[str, Any]) -> Backend:
    """What was given decides, else what is set. Imported here: a host over HTTP loads no driver, queue or model."""
    services = [name for name in ("ingest_url", "retrieval_url") if given[name]]
    stores = [name for name in ("database_url", "redis_url") if given[name]]
    if services and stores:
        raise InvalidInput(stores[0], f"give either {' and '.join(stores)} or {' and '.join(services)}, not both")
    if (given["database_url"] or "").startswith(("http://", "https://")):
        raise InvalidInput("database_url", "is the address of a service: give it as ingest_url or retrieval_url")
    over_http = services or (not stores and not settings.database_url)
    if over_http and (settings.ingest_url or settings.retrieval_url):
        from calmem.remote import Remote

        return Remote(settings)
    if not settings.database_url:
        raise PermanentError(
            "no memory to open: set CALMEM_DATABASE_URL and CALMEM_REDIS_URL (`calmem up` prints both), or "
            "CALMEM_INGEST_URL and CALMEM_RETRIEVAL_URL"
        )
    from calmem.direct import Direct

    return Direct(settings)


def _threaded(
    method: Callable[Concatenate[Memory, P], R],
) -> Callable[Concatenate[AsyncMemory, P], Coroutine[Any, Any, R]]:
    async def call(self: AsyncMemory, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(method, self.memory, *args, **kwargs)

    call.__doc__ = method.__doc__
    return call


class AsyncMemory:
    """`Memory` for asyncio: the same arguments, names and answers, each call in a thread of the loop's pool."""

    def __init__(
        self,
        database_url: str | None = None,
        redis_url: str | None = None,
        *,
        ingest_url: str | None = None,
        retrieval_url: str | None = None,
        api_key: str | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.memory = Memory(
            database_url,
            redis_url,
            ingest_url=ingest_url,
            retrieval_url=retrieval_url,
            api_key=api_key,
            settings=settings,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    close = _threaded(Memory.close)
    warm = _threaded(Memory.warm)
    record = _threaded(Memory.record)
    record_many = _threaded(Memory.record_many)
    recall = _threaded(Memory.recall)
    search = _threaded(Memory.search)
    remember_fact = _threaded(Memory.remember_fact)
    recall_facts = _threaded(Memory.recall_facts)
    forget_fact = _threaded(Memory.forget_fact)
    fact_history = _threaded(Memory.fact_history)
    get_user = _threaded(Memory.get_user)
    put_user = _threaded(Memory.put_user)
    delete_user = _threaded(Memory.delete_user)
    delete_session = _threaded(Memory.delete_session)
    delete_message = _threaded(Memory.delete_message)
    sessions = _threaded(Memory.sessions)
    messages = _threaded(Memory.messages)
