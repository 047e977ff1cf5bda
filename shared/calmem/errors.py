"""Errors of calmem: each class says whether trying again can help."""

from __future__ import annotations


class CalmemError(Exception):
    """Root of every error that calmem raises on purpose."""


class TransientError(CalmemError):
    """The surroundings failed (database, Redis, deadline); the same call may succeed later."""


class Overtaken(TransientError):
    """Another transaction came in between (a deadlock, a user deleted meanwhile): nothing was stored, trying again at once helps."""


class PermanentError(CalmemError):
    """The same call fails again until something about it is changed."""


class InvalidInput(PermanentError):
    """A value is not acceptable. `field` names it, `detail` says what would be right."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field = field
        self.detail = detail


class Conflict(PermanentError):
    """The id exists with other content or for another user."""


class Forbidden(PermanentError):
    """The session belongs to another user, or the key does not open this."""


class Unauthorized(PermanentError):
    """No key came with the request, or none that is good."""


class RateLimited(TransientError):
    """Too many requests of one key; they are taken again after `retry_after_seconds`."""

    def __init__(self, detail: str, *, retry_after_seconds: int) -> None:
        super().__init__(detail)
        self.retry_after_seconds = retry_after_seconds


class NotFound(PermanentError):
    """Nothing of that name exists for this user; nothing was changed."""


class ModelUnavailable(PermanentError):
    """No usable embedding model; the message says what to do."""
