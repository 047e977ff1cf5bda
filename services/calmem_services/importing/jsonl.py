"""calmem's own format: one message a line."""

from __future__ import annotations

from typing import Any

from calmem.errors import InvalidInput
from calmem_services.importing.formats import Draft, Format, Options, Parsed, fingerprint, own_id
from calmem_services.importing.reading import Unit


def read(line: dict[str, Any], unit: Unit, options: Options) -> Parsed:
    """The message of the line. Without `message_id` it gets one made of the line's number and bytes."""
    fields = dict(line)
    identity = f"import-{unit.number}-{fingerprint(unit.raw.strip())}"
    if options.user_id is not None:
        if fields.get("user_id") is None:
            fields["user_id"] = options.user_id
            # The same lines may be imported for another user too.
            identity = own_id(Format.JSONL, options.user_id, str(unit.number), fingerprint(unit.raw.strip()))
        elif fields["user_id"] != options.user_id:
            raise InvalidInput(
                "user_id", "is not the user of --user; leave --user out to import for those the lines name"
            )
    if fields.get("message_id") is None:
        fields["message_id"] = identity
    if fields.get("created_at") is None and options.created_at is not None:
        fields["created_at"] = options.created_at
    return Parsed(drafts=[Draft(fields=fields)])
