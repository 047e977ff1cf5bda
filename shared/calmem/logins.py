"""Use case: logins of the web console, each made with an API key."""

from __future__ import annotations

import secrets

from calmem.errors import InvalidInput
from calmem.keys import hash_secret
from calmem.model import ApiKey
from calmem.settings import Settings
from calmem.storage import logins
from calmem.storage.pool import Database


class Logins:
    """Begins, recognises and ends logins. Safe to share between threads and processes: the database holds them."""

    def __init__(self, database: Database, settings: Settings) -> None:
        if settings.console_login_hours <= 0:
            raise InvalidInput("CALMEM_CONSOLE_LOGIN_HOURS", "must be more than 0")
        self._database = database
        self._seconds = settings.console_login_hours * 3_600

    def begin(self, key: ApiKey) -> str:
        """A new token of 256 random bits for whoever showed this key."""
        token = secrets.token_urlsafe(32)
        with self._database.connection() as conn:
            logins.insert_login(conn, token_hash=hash_secret(token), prefix=key.prefix, seconds=self._seconds)
        return token

    def find(self, token: str) -> ApiKey | None:
        """The key behind the token as it is now; None when the login ended, ran out, or the key was revoked."""
        with self._database.connection() as conn:
            return logins.find_login(conn, hash_secret(token))

    def end(self, token: str) -> None:
        """Log out; nothing happens when it ended already."""
        with self._database.connection() as conn:
            logins.delete_login(conn, hash_secret(token))
