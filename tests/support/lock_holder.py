"""A calmem process in the middle of a transaction: it holds the lock of every session until it is ended."""

from __future__ import annotations

import signal

from calmem.settings import Settings
from calmem.storage.pool import Database


def main() -> None:
    with Database(Settings.from_env()) as database, database.connection() as conn:
        conn.execute("SELECT session_no FROM sessions FOR UPDATE")
        print("held", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
