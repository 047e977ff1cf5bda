"""What several integration tests open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from calmem.cache import VectorCache
from calmem.keys import Keys
from calmem.settings import Settings
from calmem.storage.pool import Database
from tests.support.cli import Run, runner
from tests.support.http import Services, services
from tests.support.tiny_model import write_tiny_model


@pytest.fixture
def keys(database: Database) -> Keys:
    return Keys(database)


@pytest.fixture
def database(settings: Settings) -> Iterator[Database]:
    with Database(settings) as opened:
        yield opened


@pytest.fixture
def cache(database: Database) -> Iterator[VectorCache]:
    opened = VectorCache(database, megabytes=64)
    yield opened
    opened.close()


@pytest.fixture
def calmem(settings: Settings) -> Iterator[Services]:
    with services(settings) as opened:
        yield opened


@pytest.fixture
def run(settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `calmem …` on the test's servers, in this process, as the console script does."""
    return runner(settings, monkeypatch, capsys)


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    """The directory of a model of 128 dimensions."""
    return str(write_tiny_model(tmp_path / "tiny", 128, seed=7))
