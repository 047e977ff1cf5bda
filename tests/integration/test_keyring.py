"""Making keys, keeping them, recognising them, and the command for it."""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from calmem import keys as key_module
from calmem.errors import InvalidInput, NotFound, Unauthorized
from calmem.keys import Keyring, Keys, NewKey, hash_secret
from calmem.model import KeyScope
from calmem.settings import Settings
from calmem.storage.pool import Database
from tests.support.keys import cli, make


def test_only_a_hash_is_stored(settings: Settings, keys: Keys) -> None:
    made = make(keys, KeyScope.RECALL, user_id="ada")

    with psycopg.connect(settings.database_url) as conn:
        row = conn.execute("SELECT api_keys::text, hash FROM api_keys").fetchone()
    assert row is not None
    shown, stored = row
    assert stored == hashlib.sha256(made.secret.encode()).digest()
    assert made.secret[20:] not in shown
    assert made.secret.startswith(f"calmem_{made.key.prefix}_")
    assert len(made.secret.removeprefix(f"calmem_{made.key.prefix}_")) == 43
    assert hash_secret(made.secret).hex() not in repr(made.key)
    assert make(keys, KeyScope.RECALL).secret != made.secret


def test_hashes_are_compared_in_constant_time_for_known_and_unknown_prefixes(
    settings: Settings, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Watches the comparison; what it answers is the real one's."""
    compared: list[tuple[bytes, bytes]] = []

    def watch(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return real(a, b)

    real = hmac.compare_digest
    made = make(keys, KeyScope.RECALL)
    monkeypatch.setattr(hmac, "compare_digest", watch)
    unknown = f"calmem_{'0' * 12}_{made.secret[20:]}"
    with Database(settings) as database:
        keyring = Keyring(database)
        assert keyring.recognise(made.secret) == make_seen(keys, made)
        for wrong in (unknown, made.secret[:-3] + "abc", "garbled"):
            with pytest.raises(Unauthorized):
                keyring.recognise(wrong)

    assert [a for a, _ in compared] == [
        hash_secret(one) for one in (made.secret, unknown, made.secret[:-3] + "abc", "garbled")
    ]
    assert [b for _, b in compared] == [hash_secret(made.secret), bytes(32), hash_secret(made.secret), bytes(32)]


def make_seen(keys: Keys, made: NewKey) -> Any:
    """The key as a service finds it at its first use: before that use is written down."""
    (found,) = [key for key in keys.list() if key.prefix == made.key.prefix]
    assert found.last_used_at is not None
    return replace(found, last_used_at=None)


def test_last_use_is_written_down_once_a_minute_and_not_for_wrong_or_revoked_keys(
    settings: Settings, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_module, "CHECK_SECONDS", 0.0)
    made = make(keys, KeyScope.RECALL)

    def used() -> Any:
        return keys.list()[0].last_used_at

    with Database(settings) as database:
        keyring = Keyring(database)
        assert used() is None
        keyring.recognise(made.secret)
        first = used()
        assert first is not None
        keyring.recognise(made.secret)
        assert used() == first
        with psycopg.connect(settings.database_url) as conn:
            conn.execute("UPDATE api_keys SET last_used_at = last_used_at - interval '2 minutes'")
        keyring.recognise(made.secret)
        assert used() >= first
        keys.revoke(made.key.prefix)
        with psycopg.connect(settings.database_url) as conn:
            conn.execute("UPDATE api_keys SET last_used_at = NULL")
        with pytest.raises(Unauthorized):
            keyring.recognise(made.secret)
        assert used() is None


def test_a_good_key_outlives_an_outage_of_the_database(
    settings: Settings, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, revoked = make(keys, KeyScope.RECALL), make(keys, KeyScope.RECALL)
    keys.revoke(revoked.key.prefix)
    monkeypatch.setattr(key_module, "CHECK_SECONDS", 0.0)
    database = Database(replace(settings, pool_wait_seconds=0.2))
    database.open()
    keyring = Keyring(database)
    assert keyring.recognise(made.secret) is not None
    with pytest.raises(Unauthorized):
        keyring.recognise(revoked.secret)

    database.close()

    assert keyring.recognise(made.secret) is not None
    for wrong in (None, revoked.secret, made.secret[:-3] + "abc"):
        with pytest.raises(Unauthorized):
            keyring.recognise(wrong)


def test_what_a_key_cannot_be_made_of(keys: Keys) -> None:
    bad: list[dict[str, Any]] = [
        {"name": " ", "scopes": ["record"]},
        {"name": "n", "scopes": []},
        {"name": "n", "scopes": ["record", "everything"]},
        {"name": "n", "scopes": ["record"], "user_id": "*"},
        {"name": "n" * 201, "scopes": ["record"]},
    ]
    for fields in bad:
        with pytest.raises(InvalidInput):
            keys.create(**fields)
    for prefix in ("", "x", "*", "%"):
        with pytest.raises(InvalidInput):
            keys.revoke(prefix)
    with pytest.raises(NotFound):
        keys.revoke("0" * 12)
    assert keys.list() == []


def test_keys_by_the_command_line(settings: Settings) -> None:
    made = cli(
        settings,
        "keys",
        "create",
        "--name",
        "phone",
        "--scope",
        "recall",
        "--scope",
        "facts",
        "--user",
        "mei",
        "--json",
    )
    plain = cli(settings, "keys", "create", "--name", "batch job", "--scope", "record")
    listed = cli(settings, "keys", "list", "--json")

    shown = json.loads(made.stdout)
    assert set(shown) == {
        "key", "prefix", "name", "scopes", "user_id", "created_at", "last_used_at", "revoked_at",
    }  # fmt: skip
    assert (shown["name"], shown["scopes"], shown["user_id"]) == ("phone", ["facts", "recall"], "mei")
    secret = shown["key"]
    assert plain.stdout.startswith("calmem_")
    assert [row["name"] for row in json.loads(listed.stdout)] == ["phone", "batch job"]
    assert json.loads(listed.stdout)[0] == {name: value for name, value in shown.items() if name != "key"}

    revoked = cli(settings, "keys", "revoke", shown["prefix"])
    table = cli(settings, "keys", "list")
    assert (revoked.returncode, revoked.stdout) == (0, f"revoked {shown['prefix']} (phone)\n")
    assert "batch job" in table.stdout
    for output in (listed, revoked, table):
        assert secret[20:] not in output.stdout + output.stderr
        assert plain.stdout.strip()[20:] not in output.stdout + output.stderr
    for bad in (
        ["create", "--name", "x", "--scope", "everything"],
        ["create", "--name", "x"],
        ["create", "--name", " ", "--scope", "record"],
        ["create", "--name", "x", "--scope", "record", "--user", "*"],
        ["revoke", "0" * 12],
        ["revoke", "everything"],
    ):
        answer = cli(settings, "keys", *bad)
        assert answer.returncode != 0, bad
        assert answer.stderr
    assert len(json.loads(cli(settings, "keys", "list", "--json").stdout)) == 2
