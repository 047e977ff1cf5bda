"""Use case: facts, exact key-value statements of a user."""

from __future__ import annotations

import fnmatch
import re
from datetime import datetime

from calmem import text
from calmem.errors import InvalidInput, NotFound
from calmem.model import Fact, FactVersion, Receipt
from calmem.storage import facts, users
from calmem.storage.pool import Connection, Database

DEFAULT_CATEGORY = "general"
VALUE_BYTES = 16_384


class Facts:
    """Remembers, recalls and forgets facts. Safe to share between threads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def remember(
        self,
        *,
        user_id: str,
        session_id: str,
        key: str,
        value: str,
        category: str | None = None,
        expires_at: datetime | str | None = None,
        source: str | None = None,
    ) -> Fact | None:
        """Write a fact; the value it replaces is kept in its history. None: the user's memory is off.

        `value`: text up to 16 KiB; `key`: up to 200 characters; `expires_at`: with offset.
        Raises InvalidInput, Forbidden (session of another user), TransientError.
        """
        user_id, session_id = _ids(user_id, session_id)
        key = text.clean_key(key)
        value = text.clean(value, field="value", limit_bytes=VALUE_BYTES)
        if not value.strip():
            raise InvalidInput("value", "must not be empty; use forget to remove a fact")
        label = text.clean_label(category, field="category") or DEFAULT_CATEGORY
        origin = text.clean_label(source, field="source")
        expiry = None if expires_at is None else text.parse_time(expires_at, field="expires_at")
        with self._database.connection() as conn:
            user = users.ensure_user(conn, user_id)
            if not user.memory_on:
                return None
            session_no, _ = users.lock_session(conn, user.user_no, session_id)
            return facts.put_fact(
                conn,
                user_no=user.user_no,
                session_no=session_no,
                category=label,
                key=key,
                value=value,
                expires_at=expiry,
                source=origin,
            )

    def recall(
        self,
        *,
        user_id: str,
        pattern: str | None = None,
        category: str | None = None,
        session_id: str | None = None,
    ) -> list[Fact]:
        """The user's live facts across sessions, newest write first; empty with memory off.

        `pattern` is a glob over the whole key: `*` any characters, `?` one, `[abc]` one of; `%` and `_` are
        themselves. Without a filter: all. Raises InvalidInput, Forbidden, TransientError.
        """
        user_id = text.clean_id(user_id, field="user_id")
        pattern = text.clean_label(pattern, field="pattern")
        category = text.clean_label(category, field="category")
        if session_id is not None:
            session_id = text.clean_id(session_id, field="session_id")
        with self._database.connection() as conn:
            user = users.get_user(conn, user_id)
            if user is None or not user.memory_on:
                return []
            if session_id is not None:
                users.own_session(conn, user.user_no, session_id)
            found = facts.find_facts(conn, user.user_no, category=category, session_id=session_id)
        if pattern is None:
            return found
        matches = re.compile(fnmatch.translate(pattern)).match
        return [fact for fact in found if matches(fact.key)]

    def forget(self, *, user_id: str, session_id: str, key: str) -> Receipt:
        """Remove one fact and its history. Raises NotFound when there is none: nothing was removed."""
        user_id, session_id = _ids(user_id, session_id)
        key = text.clean_key(key)
        with self._database.connection() as conn:
            user, session_no = _existing(conn, user_id, session_id)
            if facts.delete_fact(conn, user, session_no, key) == 0:
                raise NotFound("key: this session has no fact of that key; nothing was removed")
            return Receipt(removed={"facts": 1})

    def history(self, *, user_id: str, session_id: str, key: str) -> list[FactVersion]:
        """The values that later writes replaced, oldest first; none with memory off.

        Raises NotFound for an unknown session.
        """
        user_id, session_id = _ids(user_id, session_id)
        key = text.clean_key(key)
        with self._database.connection() as conn:
            user_no, session_no = _existing(conn, user_id, session_id)
            user = users.get_user(conn, user_id)
            if user is None or not user.memory_on:
                return []
            return facts.fact_versions(conn, user_no, session_no, key)


def _ids(user_id: str, session_id: str) -> tuple[str, str]:
    return text.clean_id(user_id, field="user_id"), text.clean_id(session_id, field="session_id")


def _existing(conn: Connection, user_id: str, session_id: str) -> tuple[int, int]:
    user = users.get_user(conn, user_id)
    session_no = None if user is None else users.own_session(conn, user.user_no, session_id)
    if user is None or session_no is None:
        raise NotFound("session_id: this user has no such session")
    return user.user_no, session_no
