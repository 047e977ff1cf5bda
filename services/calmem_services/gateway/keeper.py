"""Recording the turns of conversations that hosts replay with every request, each once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import structlog

from calmem.errors import InvalidInput
from calmem.model import Lane
from calmem.recording import Recorder
from calmem.settings import Settings
from calmem_services.gateway.conversation import Conversation, Turn, recordable

log = structlog.get_logger(__name__)

_SESSIONS = 10_000


class Keeper:
    """Remembers what this process has recorded, so that a replayed turn costs nothing. Safe to share between threads."""

    def __init__(self, recorder: Recorder, settings: Settings) -> None:
        self._recorder = recorder
        self._batch = settings.batch_messages
        self._known: OrderedDict[tuple[str, str], set[str]] = OrderedDict()
        self._lock = threading.Lock()

    def unknown(self, conversation: Conversation, turns: Sequence[Turn]) -> list[Turn]:
        """Those of the turns that this process has not recorded yet; a system message is never one."""
        with self._lock:
            known = self._known.get((conversation.user_id, conversation.session_id), set())
            return [turn for turn in turns if turn.message_id and turn.message_id not in known]

    def record(self, conversation: Conversation, turns: Sequence[Turn], lane: Lane) -> None:
        """Store the unknown ones of the turns, in order. A turn that no message can hold is left out, and logged.

        Raises Forbidden (the session is another user's) and TransientError (nothing of a batch is stored).
        """
        fresh = []
        for turn in self.unknown(conversation, turns):
            fields = self._fitting(recordable(turn, conversation))
            if fields is not None:
                fresh.append(fields)
        for first in range(0, len(fresh), self._batch):
            batch = fresh[first : first + self._batch]
            self._recorder.record_many(batch, lane=lane)
            self._remember(conversation, [fields["message_id"] for fields in batch])

    def pass_over(self, conversation: Conversation, turns: Sequence[Turn]) -> None:
        """From now on these turns count as recorded."""
        self._remember(conversation, [turn.message_id for turn in turns if turn.message_id])

    def _fitting(self, fields: dict[str, Any]) -> dict[str, Any] | None:
        """The fields, or no more of them than the text where the rest is too much; None when that is."""
        for left_out in ((), ("name", "metadata")):
            tried = {name: value for name, value in fields.items() if name not in left_out}
            try:
                self._recorder.check(tried)
            except InvalidInput as exc:
                log.warning("turn_does_not_fit", field=exc.field, role=fields["role"])
                continue
            return tried
        return None

    def _remember(self, conversation: Conversation, message_ids: Sequence[str]) -> None:
        key = (conversation.user_id, conversation.session_id)
        with self._lock:
            self._known.setdefault(key, set()).update(message_ids)
            self._known.move_to_end(key)
            while len(self._known) > _SESSIONS:
                self._known.popitem(last=False)
