"""Use case: users, their off switch and time zone, what they have, and deleting it."""

from __future__ import annotations

import zoneinfo

from calmem import paging, text
from calmem.errors import InvalidInput, NotFound
from calmem.model import Message, Receipt, Session, StoredUser, User
from calmem.storage import messages, users
from calmem.storage.pool import Connection, Database


class Users:
    """Reads, changes and deletes what belongs to a user. Safe to share between threads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, user_id: str) -> User:
        """Raises NotFound for a user who was never seen."""
        with self._database.connection() as conn:
            return _shown(find_user(conn, user_id))

    def put(self, user_id: str, *, memory: str | None = None, time_zone: str | None = None) -> User:
        """Create the user or change what is given: `memory` "on" or "off", `time_zone` an IANA name.

        With memory off nothing is written, read or injected; what was there stays until it is deleted.
        """
        user_id = text.clean_id(user_id, field="user_id")
        if memory is not None and memory not in ("on", "off"):
            raise InvalidInput("memory", 'must be "on" or "off"')
        if time_zone is not None:
            check_zone(time_zone)
        with self._database.connection() as conn:
            updated = None
            while updated is None:  # again only if the user is deleted between the two statements
                user = users.ensure_user(conn, user_id)
                memory_on = None if memory is None else memory == "on"
                updated = users.update_user(conn, user.user_no, memory_on=memory_on, time_zone=time_zone)
            return _shown(updated)

    def delete_user(self, user_id: str) -> Receipt:
        """Remove everything of the user, also what a worker is embedding now; counts per kind."""
        with self._database.connection() as conn:
            return Receipt(removed=users.delete_user(conn, find_user(conn, user_id).user_no))

    def delete_session(self, user_id: str, session_id: str) -> Receipt:
        with self._database.connection() as conn:
            user_no, session_no = find_session(conn, user_id, session_id)
            return Receipt(removed=users.delete_session(conn, user_no, session_no))

    def delete_message(self, user_id: str, message_id: str) -> Receipt:
        message_id = text.clean_id(message_id, field="message_id")
        with self._database.connection() as conn:
            removed = users.delete_message(conn, find_user(conn, user_id).user_no, message_id)
            if removed is None:
                raise NotFound("message_id: this user has no such message; nothing was removed")
            return Receipt(removed=removed)

    def sessions(
        self, user_id: str, *, cursor: str | None = None, limit: int = paging.PAGE
    ) -> tuple[list[Session], str | None]:
        """One page of the user's sessions, oldest first, and the cursor of the next page or None."""
        after, limit = paging.check(cursor, limit)
        with self._database.connection() as conn:
            user = find_user(conn, user_id)
            rows = users.list_sessions(conn, user.user_no, after=after, limit=limit + 1)
        shown, following = paging.cut(rows, limit, lambda row: row[0])
        return [session for _, session in shown], following

    def messages(
        self, user_id: str, session_id: str, *, cursor: str | None = None, limit: int = paging.PAGE
    ) -> tuple[list[Message], str | None]:
        """One page of a session's messages by seq, and the cursor of the next page or None."""
        after, limit = paging.check(cursor, limit)
        with self._database.connection() as conn:
            user_no, session_no = find_session(conn, user_id, session_id)
            rows = messages.list_messages(
                conn, user_no=user_no, session_no=session_no, session_id=session_id, after=after, limit=limit + 1
            )
        return paging.cut(rows, limit, lambda message: message.seq)


def check_zone(name: str) -> zoneinfo.ZoneInfo:
    """The time zone of an IANA name. Raises InvalidInput for any other."""
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError, TypeError) as exc:
        raise InvalidInput("time_zone", "must be an IANA name such as Asia/Shanghai or Europe/Berlin") from exc


def _shown(user: StoredUser) -> User:
    return User(user_id=user.user_id, memory_on=user.memory_on, time_zone=user.time_zone)


def find_user(conn: Connection, user_id: str) -> StoredUser:
    """Raises NotFound for a user who was never seen."""
    user = users.get_user(conn, text.clean_id(user_id, field="user_id"))
    if user is None:
        raise NotFound("user_id: no such user")
    return user


def find_session(conn: Connection, user_id: str, session_id: str) -> tuple[int, int]:
    """(user_no, session_no). Raises NotFound, and Forbidden when it is another user's."""
    user = find_user(conn, user_id)
    session_no = users.own_session(conn, user.user_no, text.clean_id(session_id, field="session_id"))
    if session_no is None:
        raise NotFound("session_id: this user has no such session")
    return user.user_no, session_no
