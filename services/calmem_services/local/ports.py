"""Ports to listen on."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack

from calmem.errors import PermanentError


def free_ports(count: int) -> list[int]:
    """Loopback ports that nobody listens on right now."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def refuse_taken(host: str, port: int, *, instead: str) -> None:
    """Raises PermanentError when somebody listens there already; `instead`: what to do then.

    Whatever else keeps one from listening there is said by who tries to.
    """
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as exc:
        if exc.errno == errno.EADDRINUSE:
            raise PermanentError(f"{host}:{port} is in use; {instead}") from exc
