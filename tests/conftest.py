"""Real servers for the whole session; a database of its own, from a template, for every test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from calmem import Memory, embedding
from calmem.embedding import Embedder, bundled
from calmem.settings import Settings
from calmem.storage.migrate import migrate
from calmem_services.local.postgres import EmbeddedPostgres
from calmem_services.local.redis import EmbeddedRedis

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """One server with a migrated template database."""
    server = EmbeddedPostgres(tmp_path_factory.mktemp("postgres") / "data")
    admin = server.start()
    with psycopg.connect(admin, autocommit=True) as conn:
        conn.execute("CREATE DATABASE template_calmem")
    migrate(server.url("template_calmem"))
    yield server
    server.stop()


@pytest.fixture
def database_url(postgres: EmbeddedPostgres) -> Iterator[str]:
    """A fresh migrated database, dropped afterwards."""
    name = f"test_{next(_numbers)}"
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE template_calmem".encode())
    yield postgres.url(name)
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as conn:
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture
def empty_database_url(postgres: EmbeddedPostgres) -> Iterator[str]:
    """A database that nobody has migrated."""
    name = f"test_{next(_numbers)}"
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name}".encode())
    yield postgres.url(name)
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as conn:
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    """A Redis of the test's own, free to be stopped, started and flushed."""
    server = EmbeddedRedis(tmp_path / "redis")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the bundled model is prepared once for all tests."""
    return tmp_path_factory.mktemp("calmem")


_loaded: dict[str, Embedder] = {}


@pytest.fixture(autouse=True)
def _one_model_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The services and hosts in this process share the default model's session: hundreds would fill the memory."""
    load = embedding.load

    def shared(settings: Settings, model: str | None = None) -> Embedder:
        default = (
            settings.runtime == "fastembed" and not settings.model_path and (model or settings.model) == bundled.MODEL
        )
        if not default:
            return load(settings, model)
        if settings.data_dir not in _loaded:
            _loaded[settings.data_dir] = load(settings, model)
        return _loaded[settings.data_dir]

    monkeypatch.setattr(embedding, "load", shared)


@pytest.fixture
def settings(database_url: str, redis_server: EmbeddedRedis, model_dir: Path) -> Settings:
    """Settings of the test's own servers; the deadline of recall is long, since these machines are shared.

    The default runtime: it loads in a fifth of the time, and tests load the model over and over.
    """
    return Settings(
        database_url=database_url,
        redis_url=redis_server.url,
        data_dir=str(model_dir),
        recall_deadline_ms=30_000,
        lease_seconds=3.0,
        sweep_seconds=0.5,
        runtime="fastembed",
    )


@pytest.fixture
def memory(settings: Settings) -> Iterator[Memory]:
    with Memory(settings=settings) as opened:
        yield opened
