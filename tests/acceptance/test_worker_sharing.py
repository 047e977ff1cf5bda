"""Who is served beside an import, and workers that share the work."""

from __future__ import annotations

from pathlib import Path

from calmem.memory import Memory
from calmem.model import Lane
from calmem.settings import Settings
from tests.support.processes import eventually, running
from tests.support.rows import count
from tests.support.workers import READY, indexed_exactly_once, record, say


def test_a_bulk_import_does_not_hold_up_live_messages(memory: Memory, settings: Settings, tmp_path: Path) -> None:
    record(memory, 600, user="importer", lane=Lane.BACKFILL, words=60)
    with running(["worker"], settings, tmp_path / "worker.log", ready=READY):
        eventually(lambda: count(settings, "vectors") > 0, "the import has begun")
        live = say(memory, "A live message in the middle of it.", user="bob")
        eventually(lambda: is_indexed(settings, live), "the live message is indexed")
        assert count(settings, "index_tasks WHERE lane = 'backfill'") > 0, "the import was already over"


def test_one_users_import_does_not_starve_another_users(memory: Memory, settings: Settings, tmp_path: Path) -> None:
    record(memory, 600, user="importer", lane=Lane.BACKFILL, words=60)
    record(memory, 5, user="late", lane=Lane.BACKFILL)
    with running(["worker"], settings, tmp_path / "worker.log", ready=READY):
        late = "index_tasks JOIN users USING (user_no) WHERE user_id = 'late'"
        eventually(lambda: count(settings, late) == 0, "the small import is done")
        assert count(settings, "index_tasks") > 0, "the large import was already over"


def is_indexed(settings: Settings, message_id: str) -> bool:
    return (
        count(settings, f"index_tasks JOIN messages USING (user_no, message_no) WHERE message_id = '{message_id}'") == 0
    )


def test_two_workers_share_the_work(memory: Memory, settings: Settings, tmp_path: Path) -> None:
    record(memory, 400, words=60)
    with (
        running(["worker"], settings, tmp_path / "one.log", ready=READY) as one,
        running(["worker"], settings, tmp_path / "two.log", ready=READY) as two,
    ):
        eventually(lambda: indexed_exactly_once(settings, 400), "all 400 indexed")
        record(memory, 400, user="bob", words=60)
        eventually(lambda: indexed_exactly_once(settings, 800), "all 800 indexed")
        assert all("messages_indexed" in worker.text() for worker in (one, two))
