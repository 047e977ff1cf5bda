"""ChatGPT's `conversations.json`: a list of conversations, each a tree of messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from calmem.errors import InvalidInput
from calmem_services.importing.formats import Draft, Format, Options, Parsed, drafts, moment, own_id, owner
from calmem_services.importing.reading import Unit

_ROLES = ("user", "assistant", "tool")
# What the page shows; the others are reasoning, settings put before the conversation, and calls of tools.
_SHOWN = ("text", "multimodal_text", "execution_output", "tether_quote", "tether_browsing_display", "code")


def read(conversation: dict[str, Any], unit: Unit, options: Options) -> Parsed:
    """The branch that ends at `current_node`, from its first message; answers that were edited away are left out."""
    mapping = conversation.get("mapping")
    if not isinstance(mapping, dict):
        raise InvalidInput("mapping", "must be an object of messages")
    user_id = owner(options, Format.CHATGPT)
    named = conversation.get("conversation_id") or conversation.get("id")
    if not isinstance(named, str):
        raise InvalidInput("conversation_id", "is missing")
    branch = _branch(mapping, conversation.get("current_node"))
    parsed = drafts(_messages(branch, conversation, named, user_id, options))
    elsewhere = sum(_message(node) is not None for name, node in mapping.items() if name not in branch)
    return Parsed(drafts=parsed.drafts, left_out=parsed.left_out + elsewhere)


def _branch(mapping: Mapping[str, Any], current: object) -> dict[str, Any]:
    """The nodes from the root to the current one; without a current one, to the newest."""
    name = current
    if not isinstance(name, str) or name not in mapping:
        name = max(mapping, key=lambda one: _time(mapping[one]), default=None)
    path: dict[str, Any] = {}
    while isinstance(name, str) and name in mapping:
        if name in path:
            raise InvalidInput("mapping", "goes round in a circle: a message is its own parent")
        node = path[name] = mapping[name]
        name = node.get("parent") if isinstance(node, dict) else None
    return dict(reversed(path.items()))


def _time(node: object) -> float:
    message = _message(node)
    time = message.get("create_time") if message else None
    return float(time) if isinstance(time, int | float) else 0.0


def _message(node: object) -> dict[str, Any] | None:
    message = node.get("message") if isinstance(node, dict) else None
    return message if isinstance(message, dict) else None


def _messages(
    branch: Mapping[str, Any], conversation: Mapping[str, Any], named: str, user_id: str, options: Options
) -> Iterator[Draft | None]:
    said_at = moment(conversation.get("create_time"), field="create_time")
    for place, (name, node) in enumerate(branch.items(), 1):
        message = _message(node)
        if message is None:
            continue  # the root holds none
        try:
            role, text = _role(message), _text(message)
            # A message without a time was said after the one before it.
            said_at = moment(message.get("create_time"), field="create_time") or said_at
        except InvalidInput as exc:
            yield Draft(place=place, fault=str(exc))
            continue
        if role is None or not text.strip():
            yield None
            continue
        identity = message.get("id")
        yield Draft(
            place=place,
            fields={
                "user_id": user_id,
                "session_id": own_id(Format.CHATGPT, user_id, named),
                "message_id": own_id(Format.CHATGPT, user_id, named, identity if isinstance(identity, str) else name),
                "role": role,
                "content": text,
                "created_at": said_at or options.created_at,
            },
        )


def _role(message: Mapping[str, Any]) -> str | None:
    """The role in calmem; None for what the page does not show."""
    author, about = message.get("author"), message.get("metadata")
    role = author.get("role") if isinstance(author, dict) else None
    if not isinstance(role, str):
        raise InvalidInput("author.role", "is missing")
    hidden = isinstance(about, dict) and about.get("is_visually_hidden_from_conversation")
    if hidden or role == "system" or (message.get("recipient") or "all") != "all":
        return None
    if role not in _ROLES:
        raise InvalidInput("author.role", f"must be one of system, {', '.join(_ROLES)}")
    return role


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if not isinstance(content, dict):
        raise InvalidInput("content", "must be an object with a content_type")
    if content.get("content_type") not in _SHOWN:
        return ""
    parts = content.get("parts")
    if parts is None:
        text = content.get("text", content.get("result"))
        return text if isinstance(text, str) else ""
    if not isinstance(parts, list):
        raise InvalidInput("content.parts", "must be a list")
    return "\n".join(filter(None, (_part(part) for part in parts)))


def _part(part: object) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("content_type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        return ""
    text = part.get("text")
    return text if isinstance(text, str) else f"[{kind.removesuffix('_asset_pointer')[:40]}]"
