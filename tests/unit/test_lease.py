"""A worker's lease while it works on one long message."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

from calmem.model import Claim, SearchIndex, Unindexed
from calmem_workers import index


def test_the_lease_is_looked_after_while_a_message_is_being_cut() -> None:
    """Cutting 1 MiB of punctuation by word pieces takes longer than some leases."""
    kept: list[None] = []
    claim = Claim(
        user_no=1,
        message_no=1,
        session_no=1,
        seq=1,
        created_at=datetime.now(UTC),
        name=None,
        user_key=b"k" * 16,
        attempts=1,
        size=9_000,
    )
    shape = SearchIndex(index_no=1, model="m", dimension=None, probe=None, chunk_chars=1_000, overlap_chars=200)
    embedder = SimpleNamespace(count_pieces=len, max_pieces=256)
    lease = SimpleNamespace(keep=lambda: kept.append(None))
    message = Unindexed(content="." * 9_000, chunks=[])
    chunks = index._cut(claim, message, shape, cast(Any, embedder), cast(Any, lease))
    assert len(kept) >= len(chunks) > 30
