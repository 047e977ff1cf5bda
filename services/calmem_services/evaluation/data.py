"""History and labelled queries in the file format of the specification."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from calmem import text
from calmem.errors import InvalidInput
from calmem.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Query:
    query_id: str
    user_id: str
    query: str
    relevant: tuple[str, ...]
    category: str
    asked_at: datetime


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """A history and the queries on it. `contents`: each message's text as a block writes it, by message id."""

    history: Sequence[Mapping[str, Any]]
    queries: Sequence[Query]
    contents: Mapping[str, str]
    users: Sequence[str]  # in the order in which they first speak
    fingerprint: str  # of both files' objects, not of their white space

    def stranger_to(self, user_id: str) -> str | None:
        """The user after this one, whose memory has nothing to say to this one's queries; None when there is no other."""
        place = self.users.index(user_id) if user_id in self.users else -1
        other = self.users[(place + 1) % len(self.users)] if self.users else user_id
        return None if other == user_id else other


def read_labelled(history: Path, queries: Path, settings: Settings) -> Labelled:
    """Both files, checked. Raises InvalidInput naming file and line."""
    rows = list(read_lines(history).values())
    contents = {
        str(row.get("message_id")): text.escape(text.clean(row.get("content"), limit_bytes=settings.message_bytes))
        for row in rows
    }
    asked = read_queries(queries, contents)
    if not asked:
        raise InvalidInput(queries.name, "holds no query")
    both = json.dumps([rows, list(read_lines(queries).values())], sort_keys=True)
    return Labelled(
        history=rows,
        queries=asked,
        contents=contents,
        users=list(dict.fromkeys(str(row.get("user_id")) for row in rows)),
        fingerprint=hashlib.sha256(both.encode()).hexdigest(),
    )


def read_lines(path: Path) -> dict[int, dict[str, Any]]:
    """The objects of a JSON Lines file by the number of their line. Raises InvalidInput naming the line."""
    rows = {}
    # By bytes: text also ends lines at U+2028 and others, which JSON strings may hold.
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as exc:
            raise InvalidInput(f"{path.name} line {number}", "is not JSON") from exc
        if not isinstance(row, dict):
            raise InvalidInput(f"{path.name} line {number}", "is not a JSON object")
        rows[number] = row
    return rows


def read_queries(path: Path, contents: dict[str, str]) -> list[Query]:
    """Queries whose relevant messages are all in `contents` (message_id -> text). Raises InvalidInput."""
    queries = []
    for number, row in read_lines(path).items():
        where = f"{path.name} line {number}"
        for name in ("query_id", "user_id", "query", "relevant", "category", "asked_at"):
            if name not in row:
                raise InvalidInput(f"{where}: {name}", "is missing")
        relevant = row["relevant"]
        if not isinstance(relevant, list) or not relevant:
            raise InvalidInput(f"{where}: relevant", "must be a list of message ids")
        for message_id in relevant:
            if not isinstance(message_id, str) or message_id not in contents:
                raise InvalidInput(f"{where}: relevant", f"{message_id!r} is not in the history")
        queries.append(
            Query(
                query_id=str(row["query_id"]),
                user_id=str(row["user_id"]),
                query=str(row["query"]),
                relevant=tuple(relevant),
                category=str(row["category"]),
                asked_at=text.parse_time(row["asked_at"], field=f"{where}: asked_at"),
            )
        )
    return queries
