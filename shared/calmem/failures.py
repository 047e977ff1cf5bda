"""Use case: messages that were set aside after their last attempt."""

from __future__ import annotations

from datetime import timedelta

from calmem import paging, text
from calmem.errors import NotFound
from calmem.model import FailedMessage
from calmem.queueing import WakeUps
from calmem.storage import tasks
from calmem.storage.pool import Database


class Failures:
    """Lists them and gives them new attempts. Safe to share between threads."""

    def __init__(self, database: Database, wake_ups: WakeUps) -> None:
        self._database = database
        self._wake_ups = wake_ups

    def page(
        self, *, cursor: str | None = None, limit: int, user_id: str | None = None
    ) -> tuple[list[FailedMessage], str | None]:
        """One page, the oldest failure first, of one user or all, and the cursor of the next page or None."""
        (failed_us, message_no, index_no), limit = paging.check_key(cursor, limit, parts=3)
        try:
            after = (tasks.EPOCH + timedelta(microseconds=failed_us), message_no, index_no)
        except OverflowError as exc:
            raise paging.foreign_cursor() from exc
        with self._database.connection() as conn:
            rows = tasks.list_failed(conn, limit=limit + 1, after=after, user_id=user_id)
        shown, following = paging.cut(rows, limit, _place)
        return [failed for _, failed in shown], following

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


def _place(row: tuple[int, FailedMessage]) -> tuple[int, int, int]:
    message_no, failed = row
    return (failed.failed_at - tasks.EPOCH) // timedelta(microseconds=1), message_no, failed.index_no
