"""A scripted OpenAI-compatible server behind a real socket: keeps every request, answers as it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from calmem import budget

JSON = "application/json"
EVENTS = "text/event-stream"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.raw)
        return parsed

    @property
    def texts(self) -> list[str]:
        """What each message says; parts that are no text are left out."""
        return [_text(message.get("content")) for message in self.body["messages"]]

    @property
    def prompt(self) -> str:
        return "\n".join(self.texts)

    @property
    def tokens(self) -> int:
        """Tokens of the messages as calmem counts text."""
        return sum(budget.tokens(text) for text in self.texts)


@dataclass(kw_only=True)
class Answer:
    """What to send back. `pieces`: the body, each written and flushed on its own; `wait` before each but the first."""

    status: int = 200
    content_type: str = JSON
    pieces: Sequence[bytes] = ()
    headers: dict[str, str] = field(default_factory=dict)
    wait: Callable[[], object] | None = None
    break_off: bool = False


def said(text: str | None, **message: Any) -> Answer:
    """A whole completion."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": "stop"}
    return Answer(pieces=[json.dumps(_completion("chat.completion", choice)).encode()])


def streamed(deltas: Sequence[dict[str, Any]], *, finish: str | None = "stop") -> Answer:
    """A completion in events, one for each delta, ended by `finish` and [DONE] unless it is None."""
    choices: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    if finish is not None:
        choices.append({"index": 0, "delta": {}, "finish_reason": finish})
    events = [f"data: {json.dumps(_completion('chat.completion.chunk', one))}\n\n".encode() for one in choices]
    if finish is not None:
        events.append(b"data: [DONE]\n\n")
    return Answer(content_type=EVENTS, pieces=events)


def words(text: str) -> Answer:
    """The text streamed word by word."""
    return streamed([{"role": "assistant", "content": ""}, *({"content": f"{word} "} for word in text.split(" "))])


def _completion(kind: str, choice: dict[str, Any]) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1_700_000_000, "model": "scripted", "choices": [choice]}


def _text(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if part.get("type") == "text")
    return content if isinstance(content, str) else ""


class ScriptedUpstream:
    """`answer` decides, request by request; `asked` has what came, `left` counts clients that went away."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[Asked] = []
        self.left = 0
        self.answer: Callable[[Asked], Answer] = lambda _asked: said("Noted.")

    @property
    def chats(self) -> list[Asked]:
        """Chats of the host, without the gateway's own requests for summaries."""
        return [one for one in self.asked if "/chat/completions" in one.path and not is_summary(one)]

    @property
    def last(self) -> Asked:
        return self.chats[-1]


def is_summary(asked: Asked) -> bool:
    return b"Summarise the earlier part of a conversation" in asked.raw


@contextmanager
def scripted_upstream() -> Iterator[ScriptedUpstream]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = False
    script = ScriptedUpstream(f"http://127.0.0.1:{server.server_address[1]}/v1")
    _Handler.scripts[server.server_address[1]] = script
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30
    disable_nagle_algorithm = True
    scripts: dict[int, ScriptedUpstream] = {}  # noqa: RUF012  # by port; the server makes its handlers itself

    def _serve(self) -> None:
        script = self.scripts[self.server.server_address[1]]  # type: ignore[index]  # an AF_INET address
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        asked = Asked(
            method=self.command, path=self.path, headers={n.lower(): v for n, v in self.headers.items()}, raw=raw
        )
        script.asked.append(asked)
        answer = script.answer(asked)
        try:
            self._write(answer)
        except OSError:
            script.left += 1
            self.close_connection = True

    def _write(self, answer: Answer) -> None:
        chunked = answer.content_type == EVENTS or answer.wait is not None
        self.send_response(answer.status)
        self.send_header("content-type", answer.content_type)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if chunked:
            self.send_header("transfer-encoding", "chunked")
        else:
            self.send_header("content-length", str(sum(map(len, answer.pieces))))
        self.end_headers()
        for number, piece in enumerate(answer.pieces):
            if number and answer.wait is not None:
                answer.wait()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
        if answer.break_off:
            self.close_connection = True
            with suppress(OSError):
                self.connection.shutdown(2)
        elif chunked:
            self.wfile.write(b"0\r\n\r\n")

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # the names that http.server looks for

    def log_message(self, *_arguments: object) -> None:
        pass
