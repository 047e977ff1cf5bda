"""Claude's export: `conversations.json`, a list of conversations with `chat_messages`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from calmem.errors import InvalidInput
from calmem_services.importing.formats import Draft, Format, Options, Parsed, drafts, moment, own_id, owner
from calmem_services.importing.reading import Unit

_ROLES = {"human": "user", "assistant": "assistant"}
# Not said to anybody.
_UNSAID = ("thinking", "redacted_thinking", "token_budget", "flag")


def read(conversation: dict[str, Any], unit: Unit, options: Options) -> Parsed:
    """The conversation's messages, in the order of the file."""
    messages = conversation.get("chat_messages")
    if not isinstance(messages, list):
        raise InvalidInput("chat_messages", "must be a list")
    user_id = owner(options, Format.CLAUDE)
    named = conversation.get("uuid")
    if not isinstance(named, str) or not named:
        raise InvalidInput("uuid", "is missing")
    began_at = moment(conversation.get("created_at"), field="created_at")
    return drafts(_messages(messages, named, user_id, began_at or options.created_at))


def _messages(messages: list[Any], named: str, user_id: str, otherwise: object) -> Iterator[Draft | None]:
    for place, message in enumerate(messages, 1):
        try:
            fields = _fields(message)
        except InvalidInput as exc:
            yield Draft(place=place, fault=str(exc))
            continue
        if fields["content"] in ("", []):
            yield None
            continue
        otherwise = fields["created_at"] = fields["created_at"] or otherwise
        ids = {
            "user_id": user_id,
            "session_id": own_id(Format.CLAUDE, user_id, named),
            "message_id": own_id(Format.CLAUDE, user_id, named, fields.pop("uuid")),
        }
        yield Draft(place=place, fields={**ids, **fields})


def _fields(message: object) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise InvalidInput("chat_messages", "must hold objects")
    identity, sender = message.get("uuid"), message.get("sender")
    if not isinstance(identity, str) or not identity:
        raise InvalidInput("uuid", "is missing")
    if not isinstance(sender, str) or sender not in _ROLES:
        raise InvalidInput("sender", f"must be one of {', '.join(_ROLES)}")
    return {
        "uuid": identity,
        "role": _ROLES[sender],
        "content": _content(message),
        "created_at": moment(message.get("created_at"), field="created_at"),
    }


def _content(message: Mapping[str, Any]) -> str | list[Any]:
    """The parts that were said, else the plain text; what was attached is named in brackets."""
    parts = message.get("content")
    said = [part for part in parts if not _unsaid(part)] if isinstance(parts, list) else []
    text = message.get("text")
    if not any(isinstance(part, dict) and part.get("text") for part in said) and isinstance(text, str) and text:
        said = [text]
    for kind in ("attachments", "files"):
        attached = message.get(kind)
        for file in attached if isinstance(attached, list) else ():
            name = file.get("file_name") if isinstance(file, dict) else None
            said.append(f"[file: {name}]" if isinstance(name, str) and name else "[file]")
    return said


def _unsaid(part: object) -> bool:
    if not isinstance(part, dict):
        return part == ""
    return part.get("type") in _UNSAID or (part.get("type") == "text" and not part.get("text"))
