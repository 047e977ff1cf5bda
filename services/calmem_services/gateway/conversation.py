"""A chat request as turns: what each says, how many tokens it takes, and the id it is recorded under. Pure."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from calmem import budget, text
from calmem.errors import InvalidInput
from calmem.model import Role

# A request's whole body is bounded before; a single message's own limit is the recorder's to check.
_TEXT_BYTES = 2**30
# What a message costs besides its text, and what stands for an image, a sound or a file (OpenAI's 1,024 x 1,024 image).
_FRAME_TOKENS = 4
_ATTACHMENT_TOKENS = 800
_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One message of the request. `place`: where it stands in `messages`; a system message has no `message_id`."""

    place: int
    role: Role
    content: str
    name: str | None
    tokens: int
    message_id: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Whose conversation it is, and its turns in order. `fixed_tokens`: tools and answer format."""

    user_id: str
    session_id: str
    turns: Sequence[Turn]
    fixed_tokens: int = 0

    @property
    def query(self) -> str:
        """What the user said last."""
        return next((turn.content for turn in reversed(self.turns) if turn.role == "user"), "")


def read(body: Mapping[str, Any], *, user_id: str, session_id: str | None) -> Conversation:
    """The turns of a chat completion request; without a session the conversation's first words name one.

    A turn's id comes from user, session, role, content and how often the same stands before it in the request. So a
    retry, a host that replays everything and one that sends only its last messages name the same turn alike.
    Raises InvalidInput when it is no such request.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidInput("messages", "must be a list of messages")
    turns = [_turn(place, message) for place, message in enumerate(messages)]
    user_id = text.clean_id(user_id, field="user")
    if session_id is None:
        first = next((turn.content for turn in turns if turn.role == "user"), "")
        session_id = f"chat-{_digest(user_id, first)}"
    session_id = text.clean_id(session_id, field="session")
    extras = [body[name] for name in ("tools", "functions", "response_format") if body.get(name)]
    return Conversation(
        user_id=user_id,
        session_id=session_id,
        turns=_named(turns, user_id, session_id),
        fixed_tokens=sum(budget.tokens(_json(extra)) for extra in extras),
    )


def answer_turn(conversation: Conversation, message: Mapping[str, Any]) -> Turn:
    """The assistant's answer as the turn that follows the conversation."""
    turn = _turn(len(conversation.turns), {**message, "role": "assistant"})
    return _named([*conversation.turns, turn], conversation.user_id, conversation.session_id)[-1]


def _turn(place: int, message: object) -> Turn:
    if not isinstance(message, Mapping):
        raise InvalidInput(f"messages[{place}]", "must be an object")
    role = _ROLES.get(str(message.get("role")))
    if role is None:
        raise InvalidInput(f"messages[{place}].role", f"must be one of {', '.join(_ROLES)}")
    if not isinstance(message.get("tool_calls"), list | None):
        raise InvalidInput(f"messages[{place}].tool_calls", "must be a list")
    content, name = message.get("content"), message.get("name")
    said = message.get("refusal") if content is None else content
    metadata = {key: message[key] for key in ("tool_calls", "tool_call_id", "function_call") if message.get(key)}
    return Turn(
        place=place,
        role=role,
        content=text.clean(said, field=f"messages[{place}].content", limit_bytes=_TEXT_BYTES).strip(),
        name=name if isinstance(name, str) else None,
        tokens=_tokens(said, name, metadata),
        metadata=metadata,
    )


def _tokens(content: object, name: object, metadata: Mapping[str, Any]) -> int:
    parts = content if isinstance(content, list) else [content]
    texts = [_json(metadata)] if metadata else []
    attachments = 0
    for part in (*parts, name):
        said = part.get("text", part.get("refusal")) if isinstance(part, Mapping) else part
        if isinstance(said, str):
            texts.append(said)
        elif said is not None or isinstance(part, Mapping):
            attachments += 1
    return _FRAME_TOKENS + attachments * _ATTACHMENT_TOKENS + -(-sum(map(budget.quarters, texts)) // 4)


def _named(turns: Sequence[Turn], user_id: str, session_id: str) -> list[Turn]:
    seen: Counter[str] = Counter()
    named = []
    for turn in turns:
        if turn.role != "system":
            said = _digest(turn.role, turn.name or "", turn.content, *_call_names(turn.metadata))
            seen[said] += 1
            turn = replace(turn, message_id=f"gw-{_digest(user_id, session_id, said, str(seen[said]))}")
        named.append(turn)
    return named


def _call_names(metadata: Mapping[str, Any]) -> list[str]:
    """What tells two turns without text apart; hosts may write a call's arguments anew, but keep its id."""
    calls = metadata.get("tool_calls", [])
    named = [call.get("id") or _json(call) if isinstance(call, Mapping) else _json(call) for call in calls]
    return [str(one) for one in (*named, metadata.get("tool_call_id", ""), _json(metadata.get("function_call", "")))]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _digest(*parts: str) -> str:
    joined = json.dumps(parts).encode("ascii")
    return hashlib.sha256(joined).hexdigest()[:32]


def recordable(turn: Turn, conversation: Conversation) -> dict[str, Any]:
    """The fields of `record` for this turn."""
    return {
        "user_id": conversation.user_id,
        "session_id": conversation.session_id,
        "message_id": turn.message_id,
        "role": turn.role,
        "content": turn.content,
        "name": turn.name,
        "metadata": turn.metadata,
    }
