"""Gateway: what a chat costs on its way through it, beside the same chat sent to the upstream directly."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import psycopg

from benchmarks import texts
from benchmarks.report import Row, asked_quick, p50, percentile, publish
from benchmarks.running import Bench, bench, pending, wait_until
from calmem import Memory
from calmem.settings import Settings
from calmem_services.local.children import die_with_parent
from calmem_services.local.ports import free_ports

_EVENT = b'data: {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": null}]}\n\n'
_END = b'data: {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
_WAYS = ("directly", "no user named", "memory off", "memory on")


class Scripted(BaseHTTPRequestHandler):
    """Answers every chat at once with the same ten words in events."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    _body = _EVENT * 10 + _END

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(self._body)))
        self.end_headers()
        self.wfile.write(self._body)

    def log_message(self, *_arguments: object) -> None:
        pass


def main() -> None:
    quick = asked_quick("Chats through the gateway, with memory on and off, and directly.")
    with bench() as servers:
        publish("gateway", measure(servers, quick=quick), quick=quick)


def measure(servers: Bench, *, quick: bool) -> list[Row]:
    """One host, one chat at a time, all ways in turn; a user with 1,000 remembered turns, a prompt of 20 messages.

    Time is measured to the first byte of the answer. The upstream answers at once, from a process of its own.
    """
    rounds = 60 if quick else 500
    with _upstream() as upstream_url:
        settings = replace(
            servers.fresh(),
            gateway_port=free_ports(1)[0],
            gateway_upstream_url=upstream_url,
            gateway_deadline_ms=30_000,
        )
        _remember(servers, settings)
        times: dict[str, list[float]] = {way: [] for way in _WAYS}
        with servers.process("gateway", settings=settings) as process, httpx.Client(timeout=60) as http:
            base = settings.url(settings.gateway_port)
            wait_until(lambda: _ready(http, base), "the gateway is ready", process=process)
            contents = texts.turns(rounds + 20, seed=8)
            for number in range(rounds):
                prompt = contents[number : number + 19]
                roles = ("user", "assistant")
                messages = [{"role": roles[n % 2], "content": content} for n, content in enumerate(prompt)]
                for way in random.Random(number).sample(_WAYS, len(_WAYS)):
                    times[way].append(_ask(http, base if way != "directly" else upstream_url[:-3], way, messages))
    direct = times["directly"]
    rows = [
        Row(what=f"chat, {way}", value=p50(found), unit="ms", note=f"p50; p95 {percentile(found, 0.95):.1f}")
        for way, found in times.items()
    ]
    added = [
        Row(
            what=f"added, {way}",
            value=p50(times[way]) - p50(direct),
            unit="ms",
            note=f"p50; p95 {percentile(times[way], 0.95) - percentile(direct, 0.95):.1f}",
        )
        for way in _WAYS[1:]
    ]
    return rows + added


def _ask(http: httpx.Client, base: str, way: str, messages: list[dict[str, str]]) -> float:
    headers = {"memory off": {"x-calmem-user": "off"}, "memory on": {"x-calmem-user": "on"}}.get(way, {})
    body = json.dumps({"model": "scripted", "stream": True, "messages": messages})
    headers |= {"x-calmem-session": f"bench-{way}", "content-type": "application/json"}
    began = time.perf_counter()
    with http.stream("POST", f"{base}/v1/chat/completions", content=body, headers=headers) as answer:
        answer.raise_for_status()
        pieces = answer.iter_raw()
        next(pieces)
        took = (time.perf_counter() - began) * 1_000
        for _ in pieces:
            pass
    return took


def _remember(servers: Bench, settings: Settings) -> None:
    with Memory(settings=settings) as memory:
        memory.put_user("off", memory="off")
        memory.record_many(
            [
                {"user_id": "on", "session_id": f"old-{number % 20}", "role": "user", "content": content}
                for number, content in enumerate(texts.turns(1_000, seed=9))
            ]
        )
    with servers.process("worker", settings=settings) as worker, psycopg.connect(settings.database_url) as conn:
        conn.autocommit = True
        wait_until(lambda: pending(conn) == 0, "everything is indexed", process=worker)


def _ready(http: httpx.Client, base: str) -> bool:
    try:
        return bool(http.get(f"{base}/readyz").json()["status"] == "ready")
    except httpx.TransportError:
        return False


@contextmanager
def _upstream() -> Iterator[str]:
    """The scripted upstream in a process of its own; its address with /v1."""
    [port] = free_ports(1)
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gateway", "--upstream", str(port)], preexec_fn=die_with_parent
    )
    try:
        with httpx.Client() as http:
            wait_until(lambda: _answers(http, port), "the upstream answers", process=process)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(timeout=60)


def _answers(http: httpx.Client, port: int) -> bool:
    try:
        return http.post(f"http://127.0.0.1:{port}/", content=b"{}").status_code == 200
    except httpx.TransportError:
        return False


if __name__ == "__main__":
    if sys.argv[1:2] == ["--upstream"]:
        ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Scripted).serve_forever()
    else:
        main()
