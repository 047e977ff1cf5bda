"""Where an interrupted import goes on: a row in the database that was imported into."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from calmem.model import ImportCheckpoint
from calmem.storage import import_checkpoints
from calmem.storage.pool import Database
from calmem_services.importing.running import Plan


class Checkpoints:
    """The checkpoint of one file, told by its path and by what was said about it."""

    def __init__(self, database: Database, path: Path, plan: Plan) -> None:
        self._database = database
        options = plan.options
        told = [str(path.resolve()), plan.format, plan.form, options.user_id, options.session_id]
        self._key = hashlib.sha256(json.dumps(told).encode()).digest()

    def load(self) -> ImportCheckpoint | None:
        with self._database.connection() as conn:
            return import_checkpoints.load(conn, self._key)

    def save(self, at: ImportCheckpoint) -> None:
        with self._database.connection() as conn:
            import_checkpoints.save(conn, self._key, at)

    def remove(self) -> None:
        with self._database.connection() as conn:
            import_checkpoints.remove(conn, self._key)
