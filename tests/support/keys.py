"""API keys for tests, and what is sent with them."""

from __future__ import annotations

import subprocess
import sys

from calmem.keys import Keys, NewKey
from calmem.model import KeyScope
from calmem.settings import Settings
from calmem_services.local.stack import environment

MESSAGE = {"user_id": "ada", "session_id": "s1", "role": "user", "content": "The boiler is a Vaillant."}
ADA = {"user_id": "ada"}
_COMMAND = [sys.executable, "-m", "calmem_services.cli.main"]


def make(keys: Keys, *scopes: KeyScope, user_id: str | None = None) -> NewKey:
    return keys.create(name="test", scopes=scopes, user_id=user_id)


def bearer(key: NewKey) -> dict[str, str]:
    return {"Authorization": f"Bearer {key.secret}"}


def cli(settings: Settings, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*_COMMAND, *arguments], env=environment(settings), capture_output=True, text=True)
