"""The `calmem` command in this process, as the console script runs it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from calmem.settings import PREFIX, Settings
from calmem_services.cli.main import main
from calmem_services.local.ports import free_ports


class Answer:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Answer]


def runner(settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A function that runs `calmem …` on the test's servers, with the settings in the environment."""
    for field in fields(Settings):
        monkeypatch.setenv(PREFIX + field.name.upper(), str(getattr(settings, field.name)))
    monkeypatch.setenv("CALMEM_RETRIEVAL_PORT", str(free_ports(1)[0]))

    def run(*arguments: str, **environment: str) -> Answer:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["calmem", *arguments])
        capsys.readouterr()
        code: int | str | None = 0
        try:
            main()
        except SystemExit as exc:
            code = exc.code
        printed = capsys.readouterr()
        return Answer(int(code or 0), printed.out, printed.err)

    return run


def line(**fields: Any) -> str:
    return json.dumps({"user_id": "ada", "session_id": "s1", "role": "user", "content": "hello", **fields})


def history(path: Path, lines: Sequence[str]) -> str:
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return str(path)
