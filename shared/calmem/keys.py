"""Use case: API keys, made, listed, revoked and recognised."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from calmem import text
from calmem.errors import InvalidInput, NotFound, TransientError, Unauthorized
from calmem.model import ApiKey, KeyScope
from calmem.storage import api_keys
from calmem.storage.pool import Connection, Database

# calmem_<prefix>_<secret>: the prefix is public, the secret has 256 random bits.
_FORMAT = re.compile(r"calmem_([0-9a-f]{12})_[A-Za-z0-9_-]{43}", re.ASCII)
_PREFIX = re.compile(r"(?:calmem_)?([0-9a-f]{12})", re.ASCII)
# What is compared with when no key has the prefix, so that an answer takes the same way.
_NOBODY = bytes(32)
# A revoked key is refused everywhere after this, plus one look at the database.
CHECK_SECONDS = 2.0
# How long a key that was good goes on while the database cannot be asked.
_STALE_SECONDS = 3_600.0
# Longest time to ask the database again about a key that it once told about: a request waits for it.
_ASK_SECONDS = 1.0
_USE_NOTED_SECONDS = 60.0
_CACHED_KEYS = 10_000


def hash_key(key: str) -> bytes:
    """SHA-256: 256 random bits cannot be guessed, so a slow hash would add time to every request and no safety."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True, kw_only=True)
class NewKey:
    """A key that was just made. `secret` is shown once and is nowhere afterwards."""

    key: ApiKey
    secret: str


class Keys:
    """Makes, lists and revokes keys. Safe to share between threads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, *, name: str, scopes: Iterable[str], user_id: str | None = None) -> NewKey:
        """A new key. `scopes`: one or more of record, recall, facts, admin; `user_id`: the only user it speaks for.

        Raises InvalidInput, TransientError.
        """
        label = text.clean_label(name, field="name")
        if label is None:
            raise InvalidInput("name", "must say whose key it is, or what for")
        known = [scope.value for scope in KeyScope]
        wanted = list(scopes)
        if not wanted or not set(wanted) <= set(known):
            raise InvalidInput("scope", f"must be one or more of {', '.join(known)}")
        owner = None if user_id is None else text.clean_id(user_id, field="user_id")
        prefix = secrets.token_hex(6)
        secret = f"calmem_{prefix}_{secrets.token_urlsafe(32)}"
        with self._database.connection() as conn:
            key = api_keys.insert_key(
                conn,
                prefix=prefix,
                key_hash=hash_key(secret),
                name=label,
                scopes=sorted({KeyScope(scope) for scope in wanted}),
                user_id=owner,
            )
        return NewKey(key=key, secret=secret)

    def list(self) -> list[ApiKey]:
        """All keys, revoked ones too, oldest first."""
        with self._database.connection() as conn:
            return api_keys.list_keys(conn)

    def revoke(self, prefix: str) -> ApiKey:
        """Refuse the key from now on. `prefix`: the twelve characters that `list` shows. Raises NotFound."""
        found = _PREFIX.fullmatch(prefix)
        if found is None:
            raise InvalidInput("prefix", "must be the twelve characters that `calmem keys list` shows")
        with self._database.connection() as conn:
            key = api_keys.revoke_key(conn, found[1])
        if key is None:
            raise NotFound("prefix: no key has this prefix; nothing was changed")
        return key

    def configured(self) -> bool:
        """Whether a key was ever made: from then on services ask for one."""
        with self._database.connection() as conn:
            return api_keys.any_key(conn)


@dataclass(kw_only=True)
class _Seen:
    """What the database said last. `key` None: there was never a key at all."""

    key: ApiKey | None
    said_at: float
    asked_at: float

    @property
    def fresh(self) -> bool:
        return time.monotonic() - self.asked_at < CHECK_SECONDS

    @property
    def usable(self) -> bool:
        """While the database cannot be asked."""
        return time.monotonic() - self.said_at < _STALE_SECONDS


class Keyring:
    """Recognises keys, for a service. Safe to share between threads.

    What the database said is believed for CHECK_SECONDS; then one caller asks again while the others go on. Holds
    hashes, never keys. While the database cannot be asked, what it said last holds for an hour: nothing of calmem
    can be read or written then anyway.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._seen: dict[str, _Seen] = {}
        self._open: _Seen | None = None
        self.keys_exist = False  # as far as is known; they never go away again, since revoked ones stay

    def ready(self, offered: str | None) -> bool:
        """Whether `recognise` answers without the database."""
        if not self.keys_exist:
            return self._open is not None and self._open.fresh
        prefix = _prefix(offered)
        seen = None if prefix is None else self._seen.get(prefix)
        return prefix is None or (seen is not None and seen.fresh)

    def recognise(self, offered: str | None) -> ApiKey | None:
        """The key that was offered; None when no key was ever made and so none is asked for.

        Raises Unauthorized (none, garbled, unknown, wrong or revoked), TransientError.
        """
        if not self.keys_exist and self._still_open():
            return None
        if not offered:
            raise Unauthorized("a key is needed: send `Authorization: Bearer …` or `X-API-Key: …`")
        prefix = _prefix(offered)
        key = None if prefix is None else self._find(prefix)
        matches = hmac.compare_digest(hash_key(offered), _NOBODY if key is None else key.hash)
        if key is None or not matches or key.revoked_at is not None:
            raise Unauthorized("this key is not known, or it was revoked; `calmem keys list` shows those there are")
        return key

    def _still_open(self) -> bool:
        seen = self._open
        if seen is not None and seen.fresh:
            return True
        now = time.monotonic()
        if seen is not None:
            seen.asked_at = now
        try:
            with self._asking(seen) as conn:
                self.keys_exist = api_keys.any_key(conn)
        except TransientError:
            if seen is not None and seen.usable:
                return True
            raise
        self._open = None if self.keys_exist else _Seen(key=None, said_at=now, asked_at=now)
        return not self.keys_exist

    def _asking(self, seen: _Seen | None) -> AbstractContextManager[Connection]:
        if seen is None or not seen.usable:
            return self._database.connection()
        return self._database.connection(_ASK_SECONDS, answer_seconds=_ASK_SECONDS)

    def _find(self, prefix: str) -> ApiKey | None:
        seen = self._seen.get(prefix)
        if seen is not None and seen.fresh:
            return seen.key
        now = time.monotonic()
        if seen is not None:
            seen.asked_at = now
        try:
            with self._asking(seen) as conn:
                key = api_keys.find_key(conn, prefix)
                if key is not None and key.revoked_at is None:
                    api_keys.note_use(conn, prefix, every_seconds=_USE_NOTED_SECONDS)
        except TransientError:
            if seen is not None and seen.usable:
                return seen.key
            raise
        with self._lock:
            if key is None:
                self._seen.pop(prefix, None)
            else:
                if len(self._seen) >= _CACHED_KEYS:
                    self._seen.clear()
                self._seen[prefix] = _Seen(key=key, said_at=now, asked_at=now)
        return key


def _prefix(offered: str | None) -> str | None:
    found = None if offered is None else _FORMAT.fullmatch(offered)
    return None if found is None else found[1]
