"""Recording: what a turn costs the chat host."""

from __future__ import annotations

import time

from benchmarks import texts
from benchmarks.report import Row, asked_quick, p50, percentile, publish
from benchmarks.running import Bench, bench
from calmem import Memory


def main() -> None:
    quick = asked_quick("Recording, in Python and over HTTP.")
    with bench() as servers:
        publish("recording", measure(servers, quick=quick), quick=quick)


def measure(servers: Bench, *, quick: bool) -> list[Row]:
    """One host, one message at a time; both ways take turns. No worker runs beside it."""
    rounds, batches = (100, 3) if quick else (1_000, 10)
    settings = servers.fresh()
    contents = texts.turns(rounds, seed=6)
    python, over_http, many = [], [], []
    with servers.service("ingest", settings=settings) as http, Memory(settings=settings) as memory:
        for content in contents:
            message = {"user_id": "u", "session_id": "s", "role": "user", "content": content}
            began = time.perf_counter()
            memory.record(**message)
            between = time.perf_counter()
            http.post("/v1/messages", json=message).raise_for_status()
            over_http.append((time.perf_counter() - between) * 1_000)
            python.append((between - began) * 1_000)
        for number in range(batches):
            batch = [
                {"user_id": f"u{number}", "session_id": f"s{number}", "role": "user", "content": content}
                for content in texts.turns(settings.batch_messages, seed=7 + number)
            ]
            began = time.perf_counter()
            memory.record_many(batch)
            many.append(len(batch) / (time.perf_counter() - began))
    return [
        _latency("record in Python", python),
        _latency("record over HTTP", over_http),
        Row(what="HTTP / Python", value=p50(over_http) / p50(python), unit="x"),
        Row(what="record_many", value=max(many), unit="msg/s", note=f"batches of {settings.batch_messages}"),
    ]


def _latency(what: str, times: list[float]) -> Row:
    return Row(what=what, value=p50(times), unit="ms", note=f"p50; p95 {percentile(times, 0.95):.1f}")


if __name__ == "__main__":
    main()
