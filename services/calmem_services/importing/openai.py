"""Messages as OpenAI's chat API takes them: one list of them, one a line, or `{"messages": […]}` a line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from calmem.errors import InvalidInput
from calmem_services.importing.formats import Draft, Format, Options, Parsed, drafts, fingerprint, moment, own_id, owner
from calmem_services.importing.reading import Unit

_ROLES = {"user": "user", "assistant": "assistant", "tool": "tool", "function": "tool"}
# Instructions to the model, not part of what was said.
_INSTRUCTIONS = ("system", "developer")
_NAMES = ("session_id", "conversation_id", "thread_id", "id")
_TIMES = ("created_at", "create_time", "timestamp")


def read(value: dict[str, Any], unit: Unit, options: Options) -> Parsed:
    """The unit's messages; their ids are made of where they stand and what they hold.

    A unit is one message of the file's only conversation, or a whole conversation, named by its `id` or, without one,
    by its place in the file and its content.
    """
    user_id = owner(options, Format.OPENAI)
    if "messages" not in value:
        session_id = options.session_id or own_id(Format.OPENAI, user_id, fingerprint(options.file_name))
        return drafts(_messages([value], user_id, session_id, options.created_at, first=unit.number))
    messages = value["messages"]
    if not isinstance(messages, list):
        raise InvalidInput("messages", "must be a list")
    named = next((value[name] for name in _NAMES if isinstance(value.get(name), str) and value[name]), None)
    session_id = own_id(Format.OPENAI, user_id, named or f"{unit.number}-{fingerprint(unit.raw.strip())}")
    return drafts(_messages(messages, user_id, session_id, _time(value) or options.created_at))


def _messages(
    messages: list[Any], user_id: str, session_id: str, otherwise: object, *, first: int | None = None
) -> Iterator[Draft | None]:
    for at, message in enumerate(messages, first or 1):
        place = 0 if first is not None else at
        if not isinstance(message, dict):
            yield Draft(place=place, fault=str(InvalidInput("messages", "must hold objects")))
            continue
        role, content = message.get("role"), message.get("content")
        if role in _INSTRUCTIONS:
            yield None
            continue
        try:
            said_at = _time(message) or otherwise
        except InvalidInput as exc:
            yield Draft(place=place, fault=str(exc))
            continue
        name = message.get("name")
        identity = fingerprint(f"{role}\x00{name}\x00{content}")
        fields = {
            "user_id": user_id,
            "session_id": session_id,
            "message_id": own_id(Format.OPENAI, user_id, fingerprint(session_id), str(at), identity),
            "role": _ROLES.get(role, role) if isinstance(role, str) else role,
            "name": name,
            "content": content,
            "created_at": said_at,
        }
        yield Draft(place=place, fields=fields)


def _time(value: Mapping[str, Any]) -> object:
    return next((moment(value[name], field=name) for name in _TIMES if value.get(name) is not None), None)
