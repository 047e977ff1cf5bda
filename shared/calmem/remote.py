"""Memory over the HTTP services: the same calls, answers and errors, without a database or a model here."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Unpack
from urllib.parse import quote

import httpx

from calmem import answers, paging, text
from calmem.backend import FactFilter, FactRequest, RecallRequest, SearchRequest
from calmem.errors import InvalidInput, PermanentError, TransientError
from calmem.model import Fact, FactVersion, Item, Lane, Message, Recall, Receipt, Recorded, Session, User
from calmem.settings import Settings

T = TypeVar("T")
Service = Literal["ingest", "retrieval"]
_TIMES = frozenset({"created_at", "since", "until", "now", "expires_at"})
# Nothing of the request has arrived: sending it again can do nothing twice.
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_POLL_SECONDS = 0.2


class Remote:
    """The two services as one backend. Safe to share between threads; nothing is connected before the first call."""

    def __init__(self, settings: Settings) -> None:
        """Raises InvalidInput naming the setting that is wrong."""
        self._urls: dict[Service, str] = {
            "ingest": _address("CALMEM_INGEST_URL", settings.ingest_url, port=8101),
            "retrieval": _address("CALMEM_RETRIEVAL_URL", settings.retrieval_url, port=8102),
        }
        key = settings.api_key
        if not key.isascii() or not key.isprintable():
            raise InvalidInput("CALMEM_API_KEY", "must be a key as `calmem keys create` prints it")
        if settings.client_timeout_seconds <= 0:
            raise InvalidInput("CALMEM_CLIENT_TIMEOUT_SECONDS", "must be more than 0")
        self._timeout = settings.client_timeout_seconds
        # Not as Authorization, which an address with a user and a password already is.
        self._http = httpx.Client(timeout=self._timeout, headers={"X-API-Key": key} if key else {})

    def close(self) -> None:
        self._http.close()

    def warm(self) -> None:
        """Waits, while the retrieval service loads its model, up to the client's timeout."""
        until = time.monotonic() + self._timeout
        while True:
            response = self._send("retrieval", "GET", f"{self._url('retrieval')}/readyz", repeatable=True)
            document = _json(response)
            if response.status_code == httpx.codes.OK:
                return
            if not isinstance(document, dict) or not isinstance(document.get("checks"), dict):
                raise self._problem("retrieval", response)
            if time.monotonic() > until:
                unfit = [f"{name}: {said}" for name, said in document["checks"].items() if said != "ok"]
                raise TransientError(f"retrieval is not ready: {'; '.join(unfit)}")
            time.sleep(_POLL_SECONDS)

    def record(self, *, lane: Lane | str = Lane.LIVE, **fields: Any) -> Recorded:
        body = _object(_identified(fields))
        return self._call(answers.recorded, "ingest", "POST", "messages", query=_lane(lane), body=body, repeatable=True)

    def record_many(self, batch: Sequence[Mapping[str, Any]], /, *, lane: Lane | str = Lane.LIVE) -> list[Recorded]:
        body = f'{{"messages":{_batch(batch)}}}'
        return self._call(
            answers.results, "ingest", "POST", "messages:batch", query=_lane(lane), body=body, repeatable=True
        )

    def recall(self, **request: Unpack[RecallRequest]) -> Recall:
        body = _object(_arguments("recall", request, RecallRequest))
        return self._call(answers.recall, "retrieval", "POST", "recall", body=body, repeatable=True)

    def search(self, **request: Unpack[SearchRequest]) -> list[Item]:
        body = _object(_arguments("search", request, SearchRequest))
        return self._call(answers.items, "retrieval", "POST", "search", body=body, repeatable=True)

    def remember_fact(self, **fact: Unpack[FactRequest]) -> Fact | None:
        body = _arguments("remember_fact", fact, FactRequest)
        place = _fact_path(body.pop("session_id"), body.pop("key"))
        # Not again when the reply was lost: the first write would become the history of the second.
        return self._call(answers.stored_fact, "retrieval", "PUT", *place, body=_object(body))

    def recall_facts(self, **wanted: Unpack[FactFilter]) -> list[Fact]:
        given = _arguments("recall_facts", wanted, FactFilter)
        query = {"user_id": text.clean_id(given["user_id"], field="user_id")}
        for name in ("pattern", "category"):
            label = text.clean_label(given.get(name), field=name)
            if label is not None:
                query[name] = label
        if given.get("session_id") is not None:
            query["session_id"] = text.clean_id(given["session_id"], field="session_id")
        return self._call(answers.facts, "retrieval", "GET", "facts", query=query, repeatable=True)

    def forget_fact(self, *, user_id: str, session_id: str, key: str) -> Receipt:
        return self._call(answers.forgotten, "retrieval", "DELETE", *_fact_path(session_id, key), query=_owner(user_id))

    def fact_history(self, *, user_id: str, session_id: str, key: str) -> list[FactVersion]:
        place = {"session_id": text.clean_id(session_id, field="session_id"), "key": text.clean_key(key)}
        query = {**_owner(user_id), **place}
        return self._call(answers.fact_versions, "retrieval", "GET", "facts", "history", query=query, repeatable=True)

    def get_user(self, user_id: str, /) -> User:
        return self._call(
            answers.user, "ingest", "GET", "users", text.clean_id(user_id, field="user_id"), repeatable=True
        )

    def put_user(self, user_id: str, /, *, memory: str | None = None, time_zone: str | None = None) -> User:
        user = text.clean_id(user_id, field="user_id")
        body = _object({"memory": memory, "time_zone": time_zone})
        return self._call(answers.user, "ingest", "PUT", "users", user, body=body, repeatable=True)

    def delete_user(self, user_id: str, /) -> Receipt:
        return self._call(answers.receipt, "ingest", "DELETE", "users", text.clean_id(user_id, field="user_id"))

    def delete_session(self, user_id: str, session_id: str, /) -> Receipt:
        session = text.clean_id(session_id, field="session_id")
        return self._call(answers.receipt, "ingest", "DELETE", "sessions", session, query=_owner(user_id))

    def delete_message(self, user_id: str, message_id: str, /) -> Receipt:
        message = text.clean_id(message_id, field="message_id")
        return self._call(answers.receipt, "ingest", "DELETE", "messages", message, query=_owner(user_id))

    def sessions(
        self, user_id: str, /, *, cursor: str | None = None, limit: int = paging.PAGE
    ) -> tuple[list[Session], str | None]:
        query = {**_owner(user_id), **_page(cursor, limit)}
        return self._call(answers.sessions, "retrieval", "GET", "sessions", query=query, repeatable=True)

    def messages(
        self, user_id: str, session_id: str, /, *, cursor: str | None = None, limit: int = paging.PAGE
    ) -> tuple[list[Message], str | None]:
        place = ("sessions", text.clean_id(session_id, field="session_id"), "messages")
        query = {**_owner(user_id), **_page(cursor, limit)}
        return self._call(answers.messages, "retrieval", "GET", *place, query=query, repeatable=True)

    def _call(
        self,
        read: Callable[[answers.Json], T],
        service: Service,
        method: str,
        *path: str,
        query: Mapping[str, str] | None = None,
        body: str | None = None,
        repeatable: bool = False,
    ) -> T:
        """One request to /v1/, its answer as a value. Raises what the service raised."""
        url = "/".join((self._url(service), "v1", *map(_segment, path)))
        response = self._send(service, method, url, query=query, body=body, repeatable=repeatable)
        if not response.is_success:
            raise self._problem(service, response)
        try:
            return read(response.json())
        except (ValueError, LookupError, TypeError, AttributeError) as exc:
            raise PermanentError(f"what answers at the address of {service} is not calmem, or another version") from exc

    def _send(
        self,
        service: Service,
        method: str,
        url: str,
        *,
        query: Mapping[str, str] | None = None,
        body: str | None = None,
        repeatable: bool,
    ) -> httpx.Response:
        """The answer, whatever its status. A connection that broke is tried once more where that does nothing twice."""
        if self._http.is_closed:
            raise TransientError("this memory is closed")
        content = None if body is None else body.encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        for last in (False, True):
            try:
                return self._http.request(method, url, params=query, content=content, headers=headers)
            except httpx.TimeoutException as exc:
                raise TransientError(f"{service} did not answer in {self._timeout:g} s") from exc
            except httpx.TransportError as exc:
                if last or not (repeatable or isinstance(exc, _NOT_SENT)):
                    raise TransientError(f"{service} cannot be reached at CALMEM_{service.upper()}_URL") from exc
        raise AssertionError("unreachable")

    def _url(self, service: Service) -> str:
        if not self._urls[service]:
            raise PermanentError(f"no address of {service}: set CALMEM_{service.upper()}_URL, or give {service}_url")
        return self._urls[service]

    def _problem(self, service: Service, response: httpx.Response) -> Exception:
        return answers.problem(
            response.status_code, _json(response), retry_after=response.headers.get("retry-after"), service=service
        )


def _address(setting: str, url: str, *, port: int) -> str:
    """Without the slash at its end. Never repeats a wrong one, since it may hold a password; `port` is the example's."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL()
    if url and (parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment):
        raise InvalidInput(setting, f"must be an address such as http://127.0.0.1:{port}")
    return url.rstrip("/")


def _segment(part: str) -> str:
    # A dot or two alone would be taken for a step in the path.
    return part.replace(".", "%2E") if part in (".", "..") else quote(part, safe=":")


def _owner(user_id: str) -> dict[str, str]:
    return {"user_id": text.clean_id(user_id, field="user_id")}


def _fact_path(session_id: str, key: str) -> tuple[str, ...]:
    return "sessions", text.clean_id(session_id, field="session_id"), "facts", text.clean_key(key)


def _lane(lane: Lane | str) -> dict[str, str]:
    return {} if lane == Lane.LIVE else {"lane": str(lane)}


def _page(cursor: str | None, limit: int) -> dict[str, str]:
    paging.check(cursor, limit)
    return {"limit": str(limit), **({} if cursor is None else {"cursor": cursor})}


def _arguments(name: str, given: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """As Python checks the arguments of a function, which is what the direct backend has here."""
    if unknown := [one for one in given if one not in kind.__annotations__]:
        raise TypeError(f"{name}() got an unexpected keyword argument {unknown[0]!r}")
    if missing := sorted(kind.__required_keys__ - set(given)):
        raise TypeError(f"{name}() is missing the argument {missing[0]!r}")
    return dict(given)


def _identified(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """With an id before the first try: a lost reply and a second try then make one message."""
    return fields if fields.get("message_id") is not None else {**fields, "message_id": str(uuid.uuid4())}


def _batch(batch: object) -> str:
    if not isinstance(batch, Sequence) or isinstance(batch, str | bytes):
        raise InvalidInput("messages", "must be a list of messages")
    encoded = []
    for place, fields in enumerate(batch):
        if not isinstance(fields, Mapping):
            raise InvalidInput(f"messages[{place}]", "must be an object")
        try:
            encoded.append(_object(_identified(fields)))
        except InvalidInput as exc:
            raise InvalidInput(f"messages[{place}].{exc.field}", exc.detail) from exc
    return f"[{','.join(encoded)}]"


def _object(fields: Mapping[str, Any]) -> str:
    """A JSON object. Raises InvalidInput naming the field that JSON cannot hold; all else is the service's to check."""
    return "{" + ",".join(f"{json.dumps(str(name))}:{_value(name, value)}" for name, value in fields.items()) + "}"


def _value(name: str, value: object) -> str:
    if name in _TIMES and value is not None:
        value = text.parse_time(value, field=name).isoformat()
    try:
        if isinstance(value, set | frozenset):
            value = sorted(value, key=str)
        return json.dumps(value, allow_nan=False, default=_as_dict)
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidInput(name, "must be JSON (no NaN, no other types)") from exc


def _as_dict(value: object) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError


def _json(response: httpx.Response) -> object:
    try:
        return response.json()
    except ValueError:
        return None
