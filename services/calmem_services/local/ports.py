"""Ports to listen on."""

from __future__ import annotations

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
    """Raises PermanentError when somebody listens there already; `instead`: what to do then."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as exc:
            raise PermanentError(f"{host}:{port} is in use; {instead}") from exc
