"""A server between a client and a service that breaks connections on purpose, as networks and restarts do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx

# Gets what a client sent, whole; answers the bytes to send back, none: the connection just ends.
Answer = Callable[[bytes], bytes]


@contextmanager
def answering(*answers: Answer) -> Iterator[tuple[str, list[bytes]]]:
    """Its address, and the requests it got. Each connection carries one request; the last answer serves all further ones."""
    got: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    request = _read(connection)
                    if not request:
                        return
                    got.append(request)
                    connection.sendall(answers[min(len(got), len(answers)) - 1](request))

        thread = threading.Thread(target=serve)
        thread.start()
        port = listener.getsockname()[1]
        try:
            yield f"http://127.0.0.1:{port}", got
        finally:
            with socket.create_connection(("127.0.0.1", port)):
                pass  # an empty request ends the thread
            thread.join()


def reply(status: str, body: str = "", *headers: str) -> Answer:
    """The same answer to everybody."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body.encode())}", "Connection: close", *headers, "", body]
    return lambda _request: "\r\n".join(lines).encode()


def hang_up(_request: bytes) -> bytes:
    """Ends the connection without a word."""
    return b""


def lose_the_reply_of(service: httpx.Client) -> Answer:
    """Hands the request on, and loses what the service answers."""

    def answer(request: bytes) -> bytes:
        _pass_on(service, request)
        return b""

    return answer


def hand_on(service: httpx.Client) -> Answer:
    """Hands the request on, and the answer back."""
    return lambda request: _pass_on(service, request)


def _pass_on(service: httpx.Client, request: bytes) -> bytes:
    head, _, body = request.partition(b"\r\n\r\n")
    method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
    content = body if body else None
    answer = service.request(method, target, content=content, headers={"Content-Type": "application/json"})
    return reply(f"{answer.status_code} passed on", answer.text)(request)


def _read(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65_536)
        if not piece:
            return data
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    length = int(lengths[0].split(b":")[1]) if lengths else 0
    while len(body) < length:
        body += connection.recv(65_536)
    return head + b"\r\n\r\n" + body
