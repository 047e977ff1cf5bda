"""Numbered SQL files, forward only, each applied once, under an advisory lock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources

import psycopg
from psycopg import conninfo, sql

from calmem.errors import PermanentError
from calmem.storage.pool import check_url, network, translated

# Any fixed number that nobody else locks; two migrating processes take turns on it.
_LOCK = 4_742_020_001

_APPLIED = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    name text PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""

_FIRST_INDEX = """
INSERT INTO search_indexes (model, chunk_chars, overlap_chars, state)
SELECT %(model)s, %(chunk_chars)s, %(overlap_chars)s, 'active'
WHERE NOT EXISTS (SELECT 1 FROM search_indexes)
"""


def migrations() -> list[tuple[str, str]]:
    """(name, SQL) of every migration, in the order they are applied."""
    folder = resources.files("calmem.storage") / "migrations"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
    return [(f.name.removesuffix(".sql"), f.read_text("utf-8")) for f in files]


def migrate(
    database_url: str,
    *,
    model: str = "sentence-transformers/all-MiniLM-L6-v2",
    chunk_chars: int = 1_000,
    overlap_chars: int = 200,
) -> list[str]:
    """Bring the database to the newest schema; returns the names applied now (empty: up to date).

    All or nothing: one transaction. A database without an index gets its first one, for `model` with
    that chunking. Raises TransientError when the server cannot be reached or takes no writes, and PermanentError
    saying what to do when pgvector is missing or too old, a right is missing, or the database is somebody else's.
    """
    check_url(database_url)
    try:
        with psycopg.connect(database_url, autocommit=False, **network(database_url)) as conn:
            conn.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            conn.execute(_APPLIED)
            done = {name for (name,) in conn.execute("SELECT name FROM schema_migrations")}
            applied = []
            for name, statements in migrations():
                if name in done:
                    continue
                conn.execute(statements.encode("utf-8"))
                conn.execute("INSERT INTO schema_migrations (name) VALUES (%s)", (name,))
                applied.append(name)
            index = {"model": model, "chunk_chars": chunk_chars, "overlap_chars": overlap_chars}
            conn.execute(_FIRST_INDEX, index)
            return applied
    except psycopg.errors.FeatureNotSupported as exc:
        raise PermanentError(
            "this Postgres has no pgvector: install the extension `vector`, then migrate again"
        ) from exc
    except psycopg.errors.UndefinedObject as exc:
        raise PermanentError(
            "pgvector is older than 0.7 and has no halfvec: update the extension `vector`, then migrate again"
        ) from exc
    except psycopg.errors.InsufficientPrivilege as exc:
        raise PermanentError(
            "this database user may not create calmem's tables or the extension `vector`: "
            "migrate as the database's owner, with the extension there"
        ) from exc
    except (psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject) as exc:
        raise PermanentError(
            "the database holds tables of the same names that calmem did not make: give calmem a database of its own"
        ) from exc
    except psycopg.Error as exc:
        raise translated(exc) from exc


@contextmanager
def scratch_database(database_url: str, name: str) -> Iterator[str]:
    """The URL of a new database on the same server, dropped at the end.

    Raises PermanentError when not allowed to, else as `Database.connection`.
    """
    try:
        with psycopg.connect(database_url, autocommit=True, **network(database_url)) as conn:
            conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
            try:
                yield conninfo.make_conninfo(database_url, dbname=name)
            finally:
                conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
    except psycopg.errors.InsufficientPrivilege as exc:
        raise PermanentError("this database user may not create databases, which an evaluation needs") from exc
    except psycopg.Error as exc:
        raise translated(exc) from exc
