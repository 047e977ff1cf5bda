"""Use case: looking through what is stored, page by page, as an operator does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from calmem import paging
from calmem.errors import InvalidInput
from calmem.model import Fact, Turn, UserSummary
from calmem.storage import facts, messages, users
from calmem.storage.pool import Database
from calmem.users import find_session, find_user


class Browser:
    """Reads users, turns and facts. Safe to share between threads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def users(
        self, *, starts_with: str = "", cursor: str | None = None, limit: int
    ) -> tuple[Sequence[UserSummary], str | None]:
        """One page of the users whose id begins so, oldest first, and the cursor of the next page or None."""
        after, limit = paging.check(cursor, limit)
        with self._database.connection() as conn:
            rows = users.list_users(conn, starts_with=starts_with, after=after, limit=limit + 1)
        shown, following = paging.cut(rows, limit, lambda row: row[0])
        return [user for _, user in shown], following

    def counts(self, user_id: str) -> Mapping[str, int]:
        """How much there is of a user, per kind. Raises NotFound."""
        with self._database.connection() as conn:
            return users.count_user(conn, find_user(conn, user_id).user_no)

    def turns(self, user_id: str, session_id: str, *, from_seq: int, limit: int) -> tuple[Sequence[Turn], int | None]:
        """The session's turns from `from_seq` on, and the seq that the next page begins with or None."""
        if not 1 <= from_seq <= 2**62:
            raise InvalidInput("from", "must be the number of a turn, 1 or more")
        with self._database.connection() as conn:
            user_no, session_no = find_session(conn, user_id, session_id)
            rows = messages.list_messages(
                conn, user_no=user_no, session_no=session_no, session_id=session_id, after=from_seq - 1, limit=limit + 1
            )
            shown = rows[:limit]
            states = messages.index_states(
                conn,
                user_no=user_no,
                session_no=session_no,
                first=shown[0].seq if shown else 0,
                last=shown[-1].seq if shown else 0,
            )
        # A message that is deleted between the two statements has no state any more.
        turns = [Turn(message=one, state=states[one.seq]) for one in shown if one.seq in states]
        return turns, rows[limit].seq if len(rows) > limit else None

    def facts(self, user_id: str, *, cursor: str | None = None, limit: int) -> tuple[Sequence[Fact], str | None]:
        """One page of the user's live facts, in the order they were first written in; none with memory off."""
        after, limit = paging.check(cursor, limit)
        with self._database.connection() as conn:
            user = find_user(conn, user_id)
            rows = facts.page_facts(conn, user.user_no, after=after, limit=limit + 1) if user.memory_on else []
        return paging.cut(rows, limit, lambda fact: fact.fact_id)
