"""The peers of benchmarks/peers.py, each filled with the same vectors and searched for the five nearest.

Each is imported only when it is opened, so that one that is missing is reported and the others are measured.
"""

from __future__ import annotations

import importlib
import os
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from calmem.embedding import Embedder

TOP = 5
_USER = "peer"
_TABLE = "chunks"
_MEM0_TABLE = "memories"
_MEM0_INDEX = _MEM0_TABLE + "_hnsw_idx"


@dataclass(frozen=True, kw_only=True)
class Chunks:
    """Rows side by side."""

    numbers: NDArray[np.int64]
    vectors: NDArray[np.float32]  # (rows, dimension)
    texts: Sequence[str]

    def part(self, rows: slice) -> Chunks:
        return Chunks(numbers=self.numbers[rows], vectors=self.vectors[rows], texts=self.texts[rows])


class Store(Protocol):
    """An opened peer. `search` may be called by many threads at once."""

    def add(self, chunks: Chunks) -> None: ...

    def finish(self) -> None:
        """Once, after the last `add`."""
        ...

    def search(self, vector: NDArray[np.float32]) -> list[int]:
        """Numbers of the TOP nearest, best first."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a peer may keep what it stores, and the model that mem0 embeds with."""

    directory: Path  # empty, of this peer alone
    database_url: str
    embedder: Embedder


@dataclass(frozen=True, kw_only=True)
class Peer:
    """How a peer is opened, and what it does otherwise than calmem."""

    name: str
    package: str  # as PyPI calls it
    note: str
    open: Callable[[Place], Store]


def be_quiet(directory: Path) -> None:
    """No telemetry, no settings kept in the home directory. To be called before any peer is opened."""
    os.environ.update(
        ANONYMIZED_TELEMETRY="False",
        MEM0_TELEMETRY="False",
        MEM0_DIR=str(directory / "mem0"),
        DO_NOT_TRACK="1",
    )


class Faiss:
    def __init__(self, place: Place) -> None:
        faiss = importlib.import_module("faiss")
        faiss.omp_set_num_threads(1)  # as it takes for one query; clients bring threads of their own
        self._index = faiss.IndexFlatIP(place.embedder.dimension)
        self._numbers = np.empty(0, np.int64)

    def add(self, chunks: Chunks) -> None:
        self._index.add(chunks.vectors)
        self._numbers = np.concatenate([self._numbers, chunks.numbers])

    def finish(self) -> None:
        pass

    def search(self, vector: NDArray[np.float32]) -> list[int]:
        _, places = self._index.search(vector[None], TOP)
        found: list[int] = self._numbers[places[0]].tolist()
        return found

    def close(self) -> None:
        self._index.reset()


class LanceDb:
    def __init__(self, place: Place) -> None:
        lancedb = importlib.import_module("lancedb")
        self._arrow = importlib.import_module("pyarrow")
        vector = self._arrow.list_(self._arrow.float32(), place.embedder.dimension)
        self._schema = self._arrow.schema([("number", self._arrow.int64()), ("vector", vector)])
        self._table = lancedb.connect(str(place.directory)).create_table(_TABLE, schema=self._schema)

    def add(self, chunks: Chunks) -> None:
        flat = self._arrow.array(chunks.vectors.ravel())
        columns = {
            "number": self._arrow.array(chunks.numbers),
            "vector": self._arrow.FixedSizeListArray.from_arrays(flat, chunks.vectors.shape[1]),
        }
        self._table.add(self._arrow.table(columns, schema=self._schema))

    def finish(self) -> None:
        pass

    def search(self, vector: NDArray[np.float32]) -> list[int]:
        asked = self._table.search(vector).distance_type("dot").select(["number", "_distance"]).limit(TOP)
        found: list[int] = asked.to_arrow()["number"].to_pylist()
        return found

    def close(self) -> None:
        self._table = None


class SqliteVec:
    """Through apsw: the sqlite3 of many Pythons is built without loading of extensions."""

    def __init__(self, place: Place) -> None:
        self._apsw = importlib.import_module("apsw")
        self._extension = importlib.import_module("sqlite_vec").loadable_path()
        self._file = str(place.directory / "vectors.db")
        self._local = threading.local()
        self._connection().execute("PRAGMA journal_mode = wal")
        self._connection().execute(
            f"CREATE VIRTUAL TABLE {_TABLE} USING vec0(number INTEGER PRIMARY KEY,"
            f" embedding float[{place.embedder.dimension}] distance_metric=cosine)"
        )

    def _connection(self) -> Any:
        if not hasattr(self._local, "connection"):
            connection = self._apsw.Connection(self._file)
            connection.enable_load_extension(True)
            connection.load_extension(self._extension)
            connection.set_busy_timeout(10_000)
            self._local.connection = connection
        return self._local.connection

    def add(self, chunks: Chunks) -> None:
        rows = ((int(number), vector.tobytes()) for number, vector in zip(chunks.numbers, chunks.vectors, strict=True))
        with self._connection() as connection:
            connection.executemany(f"INSERT INTO {_TABLE} VALUES (?, ?)", rows)

    def finish(self) -> None:
        pass

    def search(self, vector: NDArray[np.float32]) -> list[int]:
        statement = f"SELECT number FROM {_TABLE} WHERE embedding MATCH ? AND k = {TOP} ORDER BY distance"
        return [number for (number,) in self._connection().execute(statement, (vector.tobytes(),))]

    def close(self) -> None:
        self._connection().close()


class Chroma:
    def __init__(self, place: Place) -> None:
        chromadb = importlib.import_module("chromadb")
        self._client = chromadb.PersistentClient(
            path=str(place.directory), settings=chromadb.Settings(anonymized_telemetry=False)
        )
        self._collection = self._client.create_collection(
            _TABLE, embedding_function=None, configuration={"hnsw": {"space": "ip"}}
        )

    def add(self, chunks: Chunks) -> None:
        self._collection.add(ids=[str(number) for number in chunks.numbers], embeddings=chunks.vectors)

    def finish(self) -> None:
        pass

    def search(self, vector: NDArray[np.float32]) -> list[int]:
        answer = self._collection.query(query_embeddings=vector[None], n_results=TOP, include=["distances"])
        return [int(number) for number in answer["ids"][0]]

    def close(self) -> None:
        self._client.delete_collection(_TABLE)


class _GivenOrEmbedded:
    """What mem0 takes for its embedding model: vectors given in advance for some texts, the model for all others."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self.given: dict[str, NDArray[np.float32]] = {}

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:
        given = self.given.get(text)
        vector: list[float] = (self._embedder.embed_query(text) if given is None else given).tolist()
        return vector

    def embed_batch(self, texts: Sequence[str], memory_action: str | None = None) -> list[list[float]]:
        return [self.embed(text, memory_action) for text in texts]


class Mem0:
    """Filled through `add(infer=False)` as far as _ADDED goes, and beyond by the same rows in batches.

    For those, its HNSW index is dropped and made again at the end as it was: one by one they would take ten times as
    long, for the same searches.
    """

    _ADDED = 100

    def __init__(self, place: Place) -> None:
        mem0 = importlib.import_module("mem0")
        unused = {"provider": "openai", "config": {"api_key": "unused"}}  # neither is ever called
        store = {
            "connection_string": place.database_url,
            "collection_name": _MEM0_TABLE,
            "embedding_model_dims": place.embedder.dimension,
        }
        self._memory = mem0.Memory.from_config(
            {
                "vector_store": {"provider": "pgvector", "config": store},
                "llm": unused,
                "embedder": unused,
                "history_db_path": str(place.directory / "history.db"),
            }
        )
        self._embedding = self._memory.embedding_model = _GivenOrEmbedded(place.embedder)
        self._number_of: dict[str, int] = {}
        self._index = ""

    def add(self, chunks: Chunks) -> None:
        start = max(0, self._ADDED - len(self._number_of))
        for place in range(min(start, len(chunks.texts))):
            text = chunks.texts[place]
            self._embedding.given[text] = chunks.vectors[place]
            (added,) = self._memory.add(text, user_id=_USER, infer=False)["results"]
            del self._embedding.given[text]
            self._number_of[added["id"]] = int(chunks.numbers[place])
        rest = chunks.part(slice(start, None))
        if not self._index:
            with self._memory.vector_store._get_cursor(commit=True) as cursor:
                cursor.execute("SELECT indexdef FROM pg_indexes WHERE indexname = %s", (_MEM0_INDEX,))
                (self._index,) = cursor.fetchone()
                cursor.execute(f"DROP INDEX {_MEM0_INDEX}")
        ids = [str(uuid.uuid4()) for _ in rest.texts]
        self._memory.vector_store.insert(
            vectors=rest.vectors.tolist(), ids=ids, payloads=[_payload(text) for text in rest.texts]
        )
        self._number_of.update(zip(ids, rest.numbers.tolist(), strict=True))

    def finish(self) -> None:
        with self._memory.vector_store._get_cursor(commit=True) as cursor:
            cursor.execute("SET LOCAL maintenance_work_mem = '1GB'")
            cursor.execute(self._index)
            cursor.execute(f"ANALYZE {_MEM0_TABLE}")

    def search(self, vector: NDArray[np.float32]) -> list[int]:
        name = f"given{uuid.uuid4().hex}"  # a word of no memory
        self._embedding.given[name] = vector
        try:
            return [self._number_of[found["id"]] for found in self.ask(name)]
        finally:
            del self._embedding.given[name]

    def ask(self, query: str) -> Sequence[Mapping[str, Any]]:
        """mem0's whole search, with the embedding of the query."""
        found: Sequence[Mapping[str, Any]] = self._memory.search(query, top_k=TOP, filters={"user_id": _USER})[
            "results"
        ]
        return found

    def close(self) -> None:
        self._memory.vector_store.delete_col()
        self._memory.vector_store.connection_pool.close()
        self._memory.close()


def _payload(text: str) -> dict[str, str]:
    """The row that mem0's `add` writes."""
    at = "2026-01-01T00:00:00+00:00"
    row = {"user_id": _USER, "role": "user", "data": text, "hash": uuid.uuid4().hex}
    return row | {"created_at": at, "updated_at": at, "text_lemmatized": text}


PEERS = (
    Peer(name="FAISS IndexFlatIP", package="faiss-cpu", note="in-process, one user, memory only, no words", open=Faiss),
    Peer(name="LanceDB flat", package="lancedb", note="in-process, one user, files, no words", open=LanceDb),
    Peer(name="sqlite-vec", package="sqlite-vec", note="in-process, one user, one file, no words", open=SqliteVec),
    Peer(name="Chroma", package="chromadb", note="in-process, one user, approximate (HNSW), no words", open=Chroma),
    Peer(
        name="mem0, pgvector",
        package="mem0ai",
        note="in-process, approximate (HNSW) where Postgres plans it; vector given, words find nothing",
        open=Mem0,
    ),
)
