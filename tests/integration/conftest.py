"""What several integration tests open."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from calmem.keys import Keys
from calmem.settings import Settings
from calmem.storage.pool import Database
from tests.support.http import Services, services


@pytest.fixture
def keys(database: Database) -> Keys:
    return Keys(database)


@pytest.fixture
def database(settings: Settings) -> Iterator[Database]:
    with Database(settings) as opened:
        yield opened


@pytest.fixture
def calmem(settings: Settings) -> Iterator[Services]:
    with services(settings) as opened:
        yield opened
