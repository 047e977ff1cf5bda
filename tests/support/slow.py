"""A server in front of a real one that hands bytes on late or not at all, as a busy disk or a bad network would."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Connect = Callable[[], socket.socket]


class SlowProxy:
    """Takes connections at all times. `stall`: nothing is handed on until `resume`; `delay`: each piece after so long."""

    def __init__(self, listener: socket.socket, connect: Connect) -> None:
        self._listener = listener
        self._connect = connect
        self._flowing = threading.Event()
        self._flowing.set()
        self._ended = threading.Event()
        self._delay_seconds = 0.0
        self.port: int = listener.getsockname()[1]

    def stall(self) -> None:
        self._flowing.clear()

    def delay(self, seconds: float) -> None:
        self._delay_seconds = seconds

    def resume(self) -> None:
        self._delay_seconds = 0.0
        self._flowing.set()

    def serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = self._connect()
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def end(self) -> None:
        self._ended.set()
        self._flowing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with source, suppress(OSError):
            while piece := source.recv(65_536):
                self._ended.wait(self._delay_seconds)
                self._flowing.wait()
                target.sendall(piece)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)


@contextmanager
def slow(connect: Connect) -> Iterator[SlowProxy]:
    """A proxy on a loopback port before what `connect` opens."""
    proxy = SlowProxy(socket.create_server(("127.0.0.1", 0)), connect)
    thread = threading.Thread(target=proxy.serve)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.end()
        thread.join()
