"""Load: many clients at once record and recall while workers index, and four times as many."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus

import httpx
import psycopg
from prometheus_client.parser import text_string_to_metric_families

from benchmarks import texts
from benchmarks.report import Row, p50, percentile, publish
from benchmarks.running import Bench, bench, pending, ready, resident_megabytes, wait_until
from calmem import Memory
from calmem.settings import Settings

USERS, REMEMBERED = 20, 100
CLIENTS, SECONDS = 200, 120.0
_OVERLOAD = 4
KINDS = ("record", "recall")
_WINDOW = {"context_window_capacity": 100_000}


@dataclass(kw_only=True)
class Answers:
    """What the clients of one round got: how many by status, and the milliseconds of each by what was asked.

    `lost`: requests whose connection ended instead; `short`: recalls that skipped something to keep their deadline.
    """

    seconds: float
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    milliseconds: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    lost: int = 0
    short: int = 0

    @property
    def served(self) -> int:
        return sum(count for (_, status), count in self.statuses.items() if status in (200, 201))

    @property
    def per_second(self) -> float:
        return self.served / self.seconds

    @property
    def busy(self) -> int:
        return sum(count for (_, status), count in self.statuses.items() if status == 503)

    @property
    def errors(self) -> int:
        return self.lost + sum(self.statuses.values()) - self.served - self.busy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10 seconds")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=CLIENTS, help="how many at once (default: %(default)s)")
    asked = parser.parse_args()
    with bench() as servers:
        seconds = 10.0 if asked.quick else asked.seconds
        rows = measure(servers, quick=asked.quick, seconds=seconds, clients=asked.clients)
        publish("load", rows, quick=asked.quick)


def measure(servers: Bench, *, quick: bool, seconds: float | None = None, clients: int = CLIENTS) -> list[Row]:
    """`clients` record and recall in turn, each its next request when the last was answered, nobody pausing.

    With the default limits and deadline; a worker and the sweeper run. Then four times as many for a while, of which
    those that are refused wait as Retry-After says, and as many as before again.
    """
    lasting = seconds if seconds is not None else 10.0 if quick else SECONDS
    settings = replace(servers.fresh(), recall_deadline_ms=Settings().recall_deadline_ms)
    _remember(servers, settings)
    commands = {"ingest": ("serve", "ingest"), "retrieval": ("serve", "retrieval"), "worker": ("worker",)}
    with ExitStack() as stack:
        stack.enter_context(servers.process("sweeper", settings=settings))
        processes = {
            name: stack.enter_context(servers.process(*command, settings=settings))
            for name, command in commands.items()
        }
        urls = [settings.url(port) for port in (settings.ingest_port, settings.retrieval_port)]
        for url, process in zip(urls, processes.values(), strict=False):
            with httpx.Client(base_url=url) as http:
                wait_until(partial(ready, http), f"{url} is ready", process=process)
        asyncio.run(run(settings, clients=clients, seconds=min(5.0, lasting)))  # everything is loaded and grown
        memory: dict[str, list[float]] = {name: [] for name in processes}

        def look() -> None:
            for name, process in processes.items():
                memory[name].append(resident_megabytes(process.pid))

        load = asyncio.run(run(settings, clients=clients, seconds=lasting, halfway=look))
        look()
        timeouts = sum(map(pool_timeouts, urls))
        short = min(lasting, 20.0)
        many = asyncio.run(run(settings, clients=_OVERLOAD * clients, seconds=short))
        again = asyncio.run(run(settings, clients=clients, seconds=short))
        with psycopg.connect(settings.database_url) as conn:
            waiting = pending(conn)
    return [
        *_rows(load, clients),
        Row(what="waits for a database connection in vain", value=timeouts, unit="", target=0, better="lower"),
        *(
            Row(
                what=f"memory of {name}, end / half way",
                value=end / half,
                unit="x",
                target=1.1,
                better="lower",
                note=f"{end:.0f} MB",
            )
            for name, (half, end) in memory.items()
        ),
        *_rows(many, _OVERLOAD * clients),
        Row(
            what=f"served with {_OVERLOAD * clients} clients / with {clients}",
            value=many.per_second / again.per_second,
            unit="x",
            target=0.8,
            note=f"{many.per_second:.0f} / {again.per_second:.0f} per s",
        ),
        Row(what="messages that still wait for their vectors", value=waiting, unit=""),
    ]


def _rows(found: Answers, clients: int) -> list[Row]:
    def times(kind: str) -> Row:
        values = found.milliseconds[kind] or [float("nan")]
        note = f"p50; p95 {percentile(values, 0.95):.0f}, p99 {percentile(values, 0.99):.0f}"
        return Row(what=f"{clients} clients: {kind}", value=p50(values), unit="ms", note=note)

    recalled = found.statuses["recall", HTTPStatus.OK]
    whole = recalled - found.short
    statuses = ", ".join(f"{kind} {status}: {count}" for (kind, status), count in sorted(found.statuses.items()))
    return [
        Row(what=f"{clients} clients: served", value=found.per_second, unit="/s", note=statuses),
        Row(what=f"{clients} clients: errors", value=found.errors, unit="", target=0, better="lower"),
        Row(
            what=f"{clients} clients: 503",
            value=found.busy,
            unit="",
            target=0 if clients <= CLIENTS else None,
            better="lower",
        ),
        Row(
            what=f"{clients} clients: recalls whole",
            value=whole / max(1, recalled),
            unit="",
            note=f"{whole / found.seconds:.0f} per s; {found.short} cut short",
        ),
        *map(times, KINDS),
    ]


async def run(
    settings: Settings, *, clients: int, seconds: float, halfway: Callable[[], None] = lambda: None
) -> Answers:
    """What so many clients of the two services are answered in that time."""
    found = Answers(seconds=seconds)
    until = time.monotonic() + seconds
    texts_ = texts.turns(500, seed=21)
    running = [asyncio.ensure_future(_client(number, settings, until, texts_, found)) for number in range(clients)]
    await asyncio.sleep(seconds / 2)
    halfway()
    await asyncio.gather(*running)
    return found


async def _client(number: int, settings: Settings, until: float, contents: Sequence[str], found: Answers) -> None:
    """One host with one conversation: records a turn, recalls for the next."""
    dice = random.Random(number)
    asked = {"user_id": f"user-{number % USERS}", "session_id": f"session-{number}"}
    ends = {
        "record": _End(settings.host, settings.ingest_port, "/v1/messages"),
        "recall": _End(settings.host, settings.retrieval_port, "/v1/recall"),
    }
    kind = KINDS[number % 2]
    while time.monotonic() < until:
        if kind == "record":
            request: dict[str, object] = {**asked, "role": "user", "content": dice.choice(contents)}
        else:
            request = {**asked, "query": dice.choice(contents)[:200], "current_tokens": 0} | _WINDOW
        began = time.perf_counter()
        try:
            status, headers, body = await ends[kind].post(json.dumps(request).encode())
        except (OSError, asyncio.IncompleteReadError):
            found.lost += 1
            continue
        found.statuses[kind, status] += 1
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            # As Retry-After says, and not all at the same moment.
            await asyncio.sleep(float(headers["retry-after"]) * dice.uniform(1.0, 1.5))
            continue
        found.milliseconds[kind].append((time.perf_counter() - began) * 1_000)
        if kind == "recall" and status == HTTPStatus.OK:
            found.short += json.loads(body)["degraded"] is not None
        kind = KINDS[1 - KINDS.index(kind)]
    for end in ends.values():
        end.close()


class _End:
    """One kept connection; a library's client would take more of the two cores than the services."""

    def __init__(self, host: str, port: int, path: str) -> None:
        self._address = host, port
        self._path = path
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the answer. Raises OSError or IncompleteReadError when the connection ends."""
        if self._streams is None or self._streams[0].at_eof():  # the service ends connections that nobody uses
            self.close()
            self._streams = await asyncio.open_connection(*self._address)
        reader, writer = self._streams
        try:
            head = f"POST {self._path} HTTP/1.1\r\nHost: {self._address[0]}\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            answer = await reader.readexactly(int(headers["content-length"]))
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            raise
        if headers.get("connection") == "close":
            self.close()
        return int(first.split()[1]), headers, answer

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def pool_timeouts(url: str) -> float:
    """How often a service waited for a database connection in vain, and not because a recall's time was up."""
    text = httpx.get(f"{url}/metrics").text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "calmem_pool_timeouts_total" and sample.labels["reason"] != "deadline"
    )


def _remember(servers: Bench, settings: Settings) -> None:
    with Memory(settings=settings) as memory:
        for number in range(USERS):
            memory.record_many(
                [
                    {"user_id": f"user-{number}", "session_id": f"old-{number}", "role": "user", "content": content}
                    for content in texts.turns(REMEMBERED, seed=number)
                ]
            )
    with servers.process("worker", settings=settings) as worker, psycopg.connect(settings.database_url) as conn:
        conn.autocommit = True
        wait_until(lambda: pending(conn) == 0, "everything is indexed", process=worker)


if __name__ == "__main__":
    main()
