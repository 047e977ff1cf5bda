"""calmem beside other stores and memories: the same vectors, one machine, one run, taking turns.

Vectors are random in DIRECTIONS dimensions (loading.py), a query is the sum of two of them. Every vector search is for
the five nearest, and is compared with a brute force in float64. A search by text embeds a question that means none of
these vectors, which is the worst case of calmem's cache: many scores lie close together.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from queue import Empty, LifoQueue
from typing import Generic, TypeVar

import httpx
import numpy as np
import psycopg
from numpy.typing import NDArray

from benchmarks import loading
from benchmarks.cache import read_vectors, warm
from benchmarks.peers_stores import PEERS, TOP, Chunks, Mem0, Peer, Place, Store, be_quiet
from benchmarks.recall import ask
from benchmarks.report import Row, asked_quick, p50, percentile, publish
from benchmarks.running import Bench, bench
from calmem import embedding
from calmem.embedding import Embedder
from calmem.held import Held
from calmem.settings import Settings
from calmem.storage import search
from calmem.storage.pool import bound_reads
from calmem.storage.vectors import Marks, Vectors
from calmem_services.local.ports import free_ports

SIZES = (1_000, 10_000, 50_000, 200_000)
CLIENTS = (1, 8, 32)
# Sentence vectors of 384 components lie near a surface of some tens of dimensions; approximate indexes live on that.
DIRECTIONS = 32
_MEGABYTES = 1_024
_SLICE = 1_000
_WARMING = 3
T = TypeVar("T")
_SCAN_CACHE, _FLAT = "calmem scan, cache", PEERS[0].name


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How long everything may take."""

    sizes: Sequence[int]
    rounds: int
    seconds: float  # of each number of clients
    fill_seconds: float  # of each peer at each size


_FULL = Pace(sizes=SIZES, rounds=50, seconds=2.0, fill_seconds=180.0)
_QUICK = Pace(sizes=SIZES[:2], rounds=20, seconds=0.25, fill_seconds=10.0)


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to search, asked by the number of a query; safe to call from many threads."""

    name: str
    note: str
    search: Callable[[int], object]
    held: int | None = None  # a vector search: among how many of the vectors; its answer is their numbers
    times_ms: list[float] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """Queries by number, as vectors and as texts."""

    vectors: NDArray[np.float32]
    texts: Sequence[str]


def main() -> None:
    quick = asked_quick("calmem beside FAISS, LanceDB, sqlite-vec, Chroma and mem0.")
    with bench() as servers:
        publish("peers", measure(servers, quick=quick), quick=quick)


def measure(servers: Bench, *, quick: bool) -> list[Row]:
    """Every way of a size takes turns, then each is asked by more and more clients."""
    pace = _QUICK if quick else _FULL
    be_quiet(servers.directory)
    settings = servers.fresh()
    embedder = embedding.load(settings)
    names = {f"user-{size}": size for size in pace.sizes}
    users = loading.load(
        settings.database_url,
        names,
        probe=embedding.probe(embedder),
        readable=list(names),
        seed=6,
        directions=DIRECTIONS,
    )
    rows: list[Row] = []
    with ExitStack() as stack:
        stack.enter_context(servers.service("retrieval", settings=settings))
        caching = replace(settings, cache_megabytes=_MEGABYTES, retrieval_port=free_ports(1)[0])
        cached = stack.enter_context(servers.service("retrieval", settings=caching))
        for name, size in names.items():
            with psycopg.connect(settings.database_url) as conn:
                stored = read_vectors(conn, users[name])
            chunks = _chunks(settings.database_url, stored, users[name])
            asked = _Asked(
                vectors=_queries(chunks.vectors, pace.rounds + _WARMING, seed=size),
                texts=loading.questions(settings.database_url, users[name], pace.rounds + _WARMING, seed=size),
            )
            warm(cached, name, asked.texts[0])
            with ExitStack() as opened:
                ways = [
                    _sql(settings, users[name], size, asked, opened),
                    _cache(stored, asked),
                    *_whole(name, asked, {"": settings, ", cache": caching}, opened),
                    Way(
                        name="query embedding alone",
                        note="in-process, what every search by text pays",
                        search=partial(_embed, embedder, asked.texts),
                    ),
                ]
                for peer in PEERS:
                    try:
                        ways += _opened(peer, servers, embedder, chunks, asked, pace, opened)
                    except ImportError as exc:
                        rows.append(_missing(size, peer, exc))
                rows += _measured(size, ways, chunks, asked, pace)
            print(f"{size:,} chunks: measured", file=sys.stderr, flush=True)
    return rows


def _chunks(database_url: str, stored: Vectors, user_no: int) -> Chunks:
    with psycopg.connect(database_url) as conn:
        rows = conn.execute(
            "SELECT c.chunk_no, m.content FROM chunks c JOIN messages m USING (user_no, message_no) WHERE c.user_no = %s",
            (user_no,),
        )
        text_of: dict[int, str] = dict(rows.fetchall())
    return Chunks(
        numbers=stored.chunk_nos,
        vectors=stored.halves.astype(np.float32),
        texts=[text_of[number] for number in stored.chunk_nos.tolist()],
    )


def _queries(vectors: NDArray[np.float32], count: int, *, seed: int) -> NDArray[np.float32]:
    """(count, dimension), unit length."""
    pairs = np.random.default_rng(seed).integers(len(vectors), size=(count, 2))
    sums = vectors[pairs[:, 0]] + vectors[pairs[:, 1]]
    unit: NDArray[np.float32] = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    return unit


def _sql(settings: Settings, user_no: int, size: int, asked: _Asked, opened: ExitStack) -> Way:
    connections = _Pool(lambda: psycopg.connect(settings.database_url), opened)
    scope = search.Scope(user_no=user_no, index_no=1)

    def nearest(number: int) -> list[int]:
        with connections.one() as conn, conn.transaction():
            bound_reads(conn, 60_000)
            return [hit.chunk_no for hit in search.dense(conn, scope, asked.vectors[number], TOP)]

    note = "Postgres, every user's vectors in one table"
    return Way(name="calmem scan, SQL", note=note, search=nearest, held=size)


def _cache(stored: Vectors, asked: _Asked) -> Way:
    empty = Held(removed="", filled=0, written=0, blocks=(), used=0)
    held = empty.extended(
        Marks(written=1, removed=""), replace(stored, written=np.ones(len(stored.chunk_nos), np.int64))
    )

    def nearest(number: int) -> list[int]:
        return [hit.chunk_no for hit in held.search(asked.vectors[number], TOP, hidden=(), mark=1)]

    note = "in-process, one user, memory only, no words"
    return Way(name=_SCAN_CACHE, note=note, search=nearest, held=len(stored.chunk_nos))


def _whole(user: str, asked: _Asked, services: Mapping[str, Settings], opened: ExitStack) -> Iterator[Way]:
    for suffix, settings in services.items():
        url = settings.url(settings.retrieval_port)
        clients = _Pool(partial(httpx.Client, base_url=url, timeout=60), opened)

        note = "one process, from text to block: embeds, 200 by meaning and 200 by words, fused, packed"
        yield Way(
            name=f"calmem recall over HTTP{suffix}", note=note, search=partial(_recall, clients, user, asked.texts)
        )


def _embed(embedder: Embedder, texts: Sequence[str], number: int) -> object:
    return embedder.embed_query(texts[number])


def _recall(clients: _Pool[httpx.Client], user: str, texts: Sequence[str], number: int) -> object:
    with clients.one() as http:
        return ask(http, user, texts[number])


class _Pool(Generic[T]):
    """As many as are used at once, opened when they are needed."""

    def __init__(self, open_one: Callable[[], AbstractContextManager[T]], opened: ExitStack) -> None:
        self._open, self._opened = open_one, opened
        self._free: LifoQueue[T] = LifoQueue()

    @contextmanager
    def one(self) -> Iterator[T]:
        try:
            taken = self._free.get_nowait()
        except Empty:
            taken = self._opened.enter_context(self._open())
        try:
            yield taken
        finally:
            self._free.put(taken)


def _opened(
    peer: Peer,
    servers: Bench,
    embedder: Embedder,
    chunks: Chunks,
    asked: _Asked,
    pace: Pace,
    opened: ExitStack,
) -> list[Way]:
    """The peer, filled as far as the time allows. Raises ImportError when it is not installed."""
    directory = servers.directory / "peers" / f"{peer.package}-{len(chunks.numbers)}"
    directory.mkdir(parents=True)
    url = servers.fresh().database_url if peer.open is Mem0 else ""
    store = peer.open(Place(directory=directory, database_url=url, embedder=embedder))
    opened.callback(store.close)
    held, took = _fill(store, chunks, pace.fill_seconds)
    filled = f"{version(peer.package)}, filled in {took:,.1f} s"
    if held < len(chunks.numbers):
        filled = f"ONLY {held:,} CHUNKS, stopped after {pace.fill_seconds:.0f} s; " + filled
    note = f"{filled}; {peer.note}"
    ways = [
        Way(name=peer.name, note=note, search=lambda number: store.search(asked.vectors[number]), held=held),
    ]
    if isinstance(store, Mem0):
        whole = f"{filled}; in-process, from text to memories: embeds, meaning and words, no block"
        ways.append(Way(name="mem0 search", note=whole, search=lambda number: store.ask(asked.texts[number])))
    return ways


def _fill(store: Store, chunks: Chunks, seconds: float) -> tuple[int, float]:
    """How many chunks were added, and how long it took; stops when the time is up."""
    began, held = time.perf_counter(), 0
    while held < len(chunks.numbers) and time.perf_counter() - began < seconds:
        part = chunks.part(slice(held, held + _SLICE))
        store.add(part)
        held += len(part.numbers)
    store.finish()
    return held, time.perf_counter() - began


def _measured(size: int, ways: Sequence[Way], chunks: Chunks, asked: _Asked, pace: Pace) -> Iterator[Row]:
    exact = dict.fromkeys((way.name for way in ways), 0)
    scores = _scores(chunks.vectors, asked.vectors)
    for number in range(pace.rounds + _WARMING):
        for way in ways:
            began = time.perf_counter()
            found = way.search(number)
            elapsed = (time.perf_counter() - began) * 1_000
            if number < _WARMING:
                continue  # the first ones open connections and fill caches
            way.times_ms.append(elapsed)
            if way.held is not None and isinstance(found, list):
                best = chunks.numbers[np.argsort(-scores[number, : way.held])[:TOP]]
                exact[way.name] += len(set(best.tolist()) & set(found))
    for way in ways:
        rates = [_per_second(way.search, clients, pace) for clients in CLIENTS]
        parts = [
            f"p95 {percentile(way.times_ms, 0.95):,.1f}",
            f"{' / '.join(f'{rate:,.0f}' for rate in rates)} a second from {' / '.join(map(str, CLIENTS))} clients",
        ]
        if way.held is not None:
            parts.append(f"exact top {TOP}: {exact[way.name] / (TOP * pace.rounds):.1%}")
        yield Row(
            what=f"{size:>7,} chunks: {way.name}",
            value=p50(way.times_ms),
            unit="ms",
            note="; ".join([*parts, way.note]),
        )
    middle = {way.name: p50(way.times_ms) for way in ways}
    if _FLAT in middle:
        ratio = middle[_SCAN_CACHE] / middle[_FLAT]
        yield Row(what=f"{size:>7,} chunks: {_SCAN_CACHE} / {_FLAT}", value=ratio, unit="x", better="lower")


def _scores(vectors: NDArray[np.float32], queries: NDArray[np.float32]) -> NDArray[np.float64]:
    """(queries, vectors), every product in float64."""
    wide = queries.astype(np.float64)
    parts = [wide @ vectors[at : at + _SLICE].astype(np.float64).T for at in range(0, len(vectors), _SLICE)]
    return np.concatenate(parts, axis=1)


def _per_second(call: Callable[[int], object], clients: int, pace: Pace) -> float:
    """Searches a second of so many clients, each of which asks again as soon as it is answered."""
    ready = threading.Barrier(clients, timeout=60)
    numbers = itertools.count()

    def ask_on(_client: int) -> tuple[int, float, float]:
        call(0)  # opens what this thread needs
        ready.wait()
        began, answered = time.perf_counter(), 0
        while time.perf_counter() - began < pace.seconds:
            call(next(numbers) % pace.rounds)
            answered += 1
        return answered, began, time.perf_counter()

    with ThreadPoolExecutor(max_workers=clients) as threads:
        done = list(threads.map(ask_on, range(clients)))
    first, last = min(began for _, began, _ in done), max(ended for _, _, ended in done)
    return sum(answered for answered, _, _ in done) / (last - first)


def _missing(size: int, peer: Peer, exc: ImportError) -> Row:
    note = f"NOT MEASURED: {peer.package} is not installed ({exc})"
    return Row(what=f"{size:>7,} chunks: {peer.name}", value=0.0, unit="chunks", note=note)


if __name__ == "__main__":
    main()
