"""Use case: messages that were set aside after their last attempt."""

from __future__ import annotations

from calmem import text
from calmem.errors import InvalidInput, NotFound
from calmem.model import FailedMessage
from calmem.queueing import WakeUps
from calmem.storage import tasks
from calmem.storage.pool import Database


class Failures:
    """Lists them and gives them new attempts. Safe to share between threads."""

    def __init__(self, database: Database, wake_ups: WakeUps) -> None:
        self._database = database
        self._wake_ups = wake_ups

    def page(self, page: int, *, limit: int, user_id: str | None = None) -> tuple[list[FailedMessage], bool]:
        """Page number `page` (from 1), the oldest failure first, and whether there is another; of one user or all."""
        if page < 1:
            raise InvalidInput("page", "must be a whole number of 1 or more")
        with self._database.connection() as conn:
            rows = tasks.list_failed(conn, limit=limit + 1, skip=(page - 1) * limit, user_id=user_id)
        return rows[:limit], len(rows) > limit

    def retry(self, message_id: str | None = None, *, user_id: str | None = None) -> int:
        """Give one message, or all (of one user), new attempts, and wake a worker; how many.

        Raises NotFound when no failed message has that id.
        """
        if message_id is not None:
            message_id = text.clean_id(message_id, field="message_id")
        with self._database.connection() as conn:
            count, lanes = tasks.retry_failed(conn, message_id=message_id, user_id=user_id)
        if message_id is not None and not count:
            raise NotFound("message_id: no failed message has this id; nothing was changed")
        for lane in lanes:
            self._wake_ups.push(lane)
        return count
