"""One worker under steady load: how long a message waits for its vector when it is not the only one."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import psycopg

from benchmarks import indexing, texts
from benchmarks.report import Row, p50, percentile
from benchmarks.running import Bench, pending, wait_until
from calmem import Memory
from calmem.settings import Settings

SHARES = (0.5, 0.9)

# Only in this benchmark's database: at the commit that writes the vectors and clears the task, the time of it.
_NOTE = """
CREATE TABLE bench_settled (message_no bigint, at timestamptz);
CREATE FUNCTION bench_settle() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO bench_settled VALUES (OLD.message_no, clock_timestamp());
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER bench_settle AFTER DELETE ON index_tasks DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION bench_settle();
"""
_WAITED = """
SELECT extract(epoch FROM s.at - m.recorded_at)::float8 * 1000
FROM messages m JOIN bench_settled s USING (message_no) WHERE starts_with(m.message_id, %s)
"""


@dataclass(frozen=True, kw_only=True)
class _Pace:
    rounds: int
    count: int  # messages of a round
    seconds: float  # of steady load


def measure(servers: Bench, few: Settings, many: Settings, *, quick: bool) -> list[Row]:
    """Rates beside few and many stored chunks in turns, and with a second worker; then steady load beside many."""
    pace = _Pace(rounds=2, count=160, seconds=8.0) if quick else _Pace(rounds=4, count=600, seconds=60.0)
    contents = texts.turns(pace.count, seed=9)
    with (
        psycopg.connect(few.database_url, autocommit=True) as few_conn,
        psycopg.connect(many.database_url, autocommit=True) as many_conn,
        Memory(settings=few) as few_memory,
        Memory(settings=many) as many_memory,
        servers.process("worker", settings=few),
        servers.process("worker", settings=many),
    ):
        indexing.warm_up(few_memory, few_conn, "few")
        indexing.warm_up(many_memory, many_conn, "one")
        rates: dict[str, list[float]] = {"few": [], "one": [], "two": [], "now": []}

        def measure_once(label: str, memory: Memory, conn: psycopg.Connection[tuple[int]], settings: Settings) -> None:
            name = f"{label}-{len(rates[label])}"
            rates[label].append(pace.count / indexing.index_seconds(memory, conn, contents, name, settings))

        for _ in range(pace.rounds):
            measure_once("few", few_memory, few_conn, few)
            measure_once("one", many_memory, many_conn, many)
        with servers.process("worker", settings=many):
            indexing.warm_up(many_memory, many_conn, "two", seconds_more=4.0)
            for _ in range(pace.rounds):
                measure_once("two", many_memory, many_conn, many)
        many_conn.execute(_NOTE)
        waits = []
        for share in SHARES:
            measure_once("now", many_memory, many_conn, many)  # others may have come to the machine
            waits += _steady(many_memory, many_conn, share, capacity=rates["now"][-1], seconds=pace.seconds)
    best = {label: max(found) for label, found in rates.items()}
    note = f"best of {pace.rounds} rounds of {pace.count} messages; "
    return [
        Row(what="indexing, one worker", value=best["one"], unit="msg/s", note=f"{note}median {p50(rates['one']):.0f}"),
        Row(
            what="indexing, two workers", value=best["two"], unit="msg/s", note=f"{note}median {p50(rates['two']):.0f}"
        ),
        Row(what="two workers / one", value=best["two"] / best["one"], unit="x", note="embedding threads: 1 each"),
        Row(what="one worker, tenfold table / table", value=best["one"] / best["few"], unit="x"),
        *waits,
    ]


def _steady(
    memory: Memory, conn: psycopg.Connection[tuple[int]], share: float, *, capacity: float, seconds: float
) -> list[Row]:
    """Messages one by one at that share of the capacity, at random moments (Poisson)."""
    label = f"steady-{share:.0%}"
    contents = texts.turns(max(20, round(share * capacity * seconds)), seed=10)
    due = np.cumsum(np.random.default_rng(10).exponential(1 / (share * capacity), len(contents))).tolist()
    began = time.perf_counter()
    for message, at in zip(indexing.messages(contents, label), due, strict=True):
        time.sleep(max(0.0, began + at - time.perf_counter()))
        memory.record(**message)
    rate = len(contents) / (time.perf_counter() - began)
    left = pending(conn)
    wait_until(lambda: pending(conn) == 0, "everything is indexed")
    waited = [float(row[0]) for row in conn.execute(_WAITED, (f"{label}-",))]
    note = f"{len(waited)} messages, {rate:.0f}/s sent of {capacity:.0f}/s, {left} pending at the end"
    return [
        Row(what=f"record to vector at {share:.0%} of capacity: {which}", value=milliseconds, unit="ms", note=note)
        for which, milliseconds in (("p50", p50(waited)), ("p95", percentile(waited, 0.95)))
    ]
