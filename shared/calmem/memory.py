"""The front door in Python: one object for a host process, sync and async."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from calmem.explaining import Explainer
from calmem.facts import Facts
from calmem.model import Explanation, Fact, FactVersion, Item, Lane, Message, Recall, Receipt, Recorded, Session, User
from calmem.models import Models
from calmem.queueing import WakeUps
from calmem.recall import Recaller
from calmem.recording import Recorder
from calmem.settings import Settings
from calmem.storage.pool import Database
from calmem.users import Users

P = ParamSpec("P")
R = TypeVar("R")


class Memory:
    """Memory over Postgres and Redis. Safe to share between threads; close it at the end.

    Missing URLs come from the environment (`CALMEM_DATABASE_URL`, `CALMEM_REDIS_URL`). Nothing is connected
    before the first call; the embedding model is loaded by the first recall or search.
    """

    def __init__(
        self, database_url: str | None = None, redis_url: str | None = None, *, settings: Settings | None = None
    ) -> None:
        chosen = settings or Settings.from_env()
        chosen = replace(
            chosen,
            database_url=database_url or chosen.database_url,
            redis_url=redis_url or chosen.redis_url,
        )
        self._database = Database(chosen)
        self._database.open()
        self._recorder = Recorder(self._database, WakeUps(chosen.redis_url), chosen)
        self._recaller = Recaller(self._database, chosen, Models(chosen))
        self._explainer = Explainer(self._database, chosen, self._recaller)
        self._facts = Facts(self._database)
        self._users = Users(self._database)

    def close(self) -> None:
        self._recaller.close()
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def record(self, /, **fields: Any) -> Recorded:
        """See `calmem.recording.Recorder.record`."""
        return self._recorder.record(**fields)

    def record_many(self, messages: Sequence[Mapping[str, Any]], *, lane: Lane = Lane.LIVE) -> list[Recorded]:
        """See `calmem.recording.Recorder.record_many`."""
        return self._recorder.record_many(messages, lane=lane)

    def recall(self, /, **request: Any) -> Recall:
        """See `calmem.recall.Recaller.recall`."""
        return self._recaller.recall(**request)

    def explain(self, /, **request: Any) -> Explanation:
        """See `calmem.explaining.Explainer.explain`."""
        return self._explainer.explain(**request)

    def search(self, /, **request: Any) -> list[Item]:
        """See `calmem.recall.Recaller.search`."""
        return self._recaller.search(**request)

    def remember_fact(self, /, **fact: Any) -> Fact | None:
        """See `calmem.facts.Facts.remember`."""
        return self._facts.remember(**fact)

    def recall_facts(self, /, **request: Any) -> list[Fact]:
        """See `calmem.facts.Facts.recall`."""
        return self._facts.recall(**request)

    def forget_fact(self, *, user_id: str, session_id: str, key: str) -> Receipt:
        """See `calmem.facts.Facts.forget`."""
        return self._facts.forget(user_id=user_id, session_id=session_id, key=key)

    def fact_history(self, *, user_id: str, session_id: str, key: str) -> list[FactVersion]:
        """See `calmem.facts.Facts.history`."""
        return self._facts.history(user_id=user_id, session_id=session_id, key=key)

    def get_user(self, user_id: str) -> User:
        """See `calmem.users.Users.get`."""
        return self._users.get(user_id)

    def put_user(self, user_id: str, *, memory: str | None = None, time_zone: str | None = None) -> User:
        """See `calmem.users.Users.put`."""
        return self._users.put(user_id, memory=memory, time_zone=time_zone)

    def delete_user(self, user_id: str) -> Receipt:
        """See `calmem.users.Users.delete_user`."""
        return self._users.delete_user(user_id)

    def delete_session(self, user_id: str, session_id: str) -> Receipt:
        """See `calmem.users.Users.delete_session`."""
        return self._users.delete_session(user_id, session_id)

    def delete_message(self, user_id: str, message_id: str) -> Receipt:
        """See `calmem.users.Users.delete_message`."""
        return self._users.delete_message(user_id, message_id)

    def sessions(
        self, user_id: str, *, cursor: str | None = None, limit: int = 100
    ) -> tuple[list[Session], str | None]:
        """See `calmem.users.Users.sessions`."""
        return self._users.sessions(user_id, cursor=cursor, limit=limit)

    def messages(
        self, user_id: str, session_id: str, *, cursor: str | None = None, limit: int = 100
    ) -> tuple[list[Message], str | None]:
        """See `calmem.users.Users.messages`."""
        return self._users.messages(user_id, session_id, cursor=cursor, limit=limit)


def _threaded(
    method: Callable[Concatenate[Memory, P], R],
) -> Callable[Concatenate[AsyncMemory, P], Coroutine[Any, Any, R]]:
    async def call(self: AsyncMemory, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(method, self.memory, *args, **kwargs)

    call.__doc__ = method.__doc__
    return call


class AsyncMemory:
    """`Memory` for asyncio: the same names and answers, each call in a thread of the loop's pool."""

    def __init__(
        self, database_url: str | None = None, redis_url: str | None = None, *, settings: Settings | None = None
    ) -> None:
        self.memory = Memory(database_url, redis_url, settings=settings)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    close = _threaded(Memory.close)
    record = _threaded(Memory.record)
    record_many = _threaded(Memory.record_many)
    recall = _threaded(Memory.recall)
    explain = _threaded(Memory.explain)
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
