"""Items and facts to rank and to render."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from calmem.model import Fact, Item

START = datetime(2025, 5, 1, 12, tzinfo=UTC)


def item(
    text: str,
    *,
    seq: int = 1,
    session: str = "s1",
    start: int = 0,
    chunk_no: int | None = None,
    minutes: int | None = None,
    name: str | None = None,
) -> Item:
    """A piece of message `seq` of a session; the message's time is `minutes` (default: `seq`) after START."""
    return Item(
        chunk_no=seq if chunk_no is None else chunk_no,
        message_id=f"{session}-{seq}",
        session_id=session,
        seq=seq,
        role="user",
        name=name,
        created_at=START + timedelta(minutes=seq if minutes is None else minutes),
        start=start,
        end=start + len(text),
        text=text,
    )


def fact(key: str, value: str, number: int = 1) -> Fact:
    return Fact(
        fact_id=number,
        session_id="s1",
        category="general",
        key=key,
        value=value,
        created_at=START,
        updated_at=START,
        expires_at=None,
        source=None,
    )
