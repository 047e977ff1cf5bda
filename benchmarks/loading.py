"""Indexed histories written straight into the tables by binary COPY, a hundred times faster than indexing them.

Vectors are drawn at random: an exact scan costs the same whatever they are. An approximate index does not: for one,
`directions` keeps them in so many dimensions, as those of sentences nearly are. Words are drawn with Zipf frequencies.
Texts and postings agree for users that are read; the others ("neighbours") only have postings and vectors, and texts if
`all_texts`. Memory does not grow with the rows: they are made and written by slices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import numpy as np
import psycopg
from numpy.typing import NDArray

from benchmarks import texts
from calmem.words import index_words, key_tokens

DIMENSION = 384
SESSION_MESSAGES = 50
_SLICE = 20_000
_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
# A message every ten minutes. Postgres counts microseconds from 2000-01-01.
_FIRST = datetime(2025, 1, 1, tzinfo=UTC)
_FIRST_AT = int((_FIRST - datetime(2000, 1, 1, tzinfo=UTC)).total_seconds()) * 1_000_000
_STEP = 600_000_000
# Rows are written with their numbers; what calmem records afterwards gets the next ones.
_IDENTITIES = [
    f"SELECT setval(pg_get_serial_sequence('{table}', '{column}'), coalesce((SELECT max({column}) FROM {table}), 1))"
    for table, column in (
        ("users", "user_no"),
        ("sessions", "session_no"),
        ("messages", "message_no"),
        ("chunks", "chunk_no"),
    )
]
# A span may end behind its text; these texts are shorter.
_CHUNK_CHARS = 1_000

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]
Bytes: TypeAlias = NDArray[np.uint8]


def load(
    database_url: str,
    sizes: Mapping[str, int],
    *,
    probe: NDArray[np.float32],
    readable: Sequence[str],
    seed: int,
    directions: int = DIMENSION,
    all_texts: bool = False,
) -> dict[str, int]:
    """One user per entry with that many chunks, one chunk a message; their rows arrive mixed, as in real life.

    Returns user_no by user_id. Vacuumed and analysed at the end; calmem's processes can go on recording.
    """
    rng = np.random.default_rng(seed)
    words = texts.vocabulary()
    stems = [index_words(word)[0] for word in words]
    with psycopg.connect(database_url, autocommit=True) as conn:
        # Foreign keys are not checked row by row, and GIN is built at once; the b-trees grow as they would.
        conn.execute("SET session_replication_role = replica")
        conn.execute("SET maintenance_work_mem = '512MB'")
        conn.execute("SET synchronous_commit = off")
        row = conn.execute("SELECT indexdef FROM pg_indexes WHERE indexname = 'chunks_tokens'").fetchone()
        assert row is not None
        conn.execute("DROP INDEX chunks_tokens")
        conn.execute(
            "UPDATE search_indexes SET dimension = %s, probe = %s::halfvec",
            (DIMENSION, "[" + ",".join(map(str, probe)) + "]"),
        )
        names = list(sizes)
        tokens = _users(conn, names, set(readable), stems, rng)
        order = rng.permutation(np.repeat(np.arange(len(names)), [sizes[name] for name in names]))
        place = _running_count(order, len(names))
        first_session = np.cumsum([0] + [-(-sizes[name] // SESSION_MESSAGES) for name in names])
        _sessions(conn, names, first_session)
        session = first_session[order] + place // SESSION_MESSAGES + 1
        told = np.full(len(names), all_texts)
        told[list(tokens)] = True
        basis = None if directions == DIMENSION else rng.standard_normal((directions, DIMENSION), dtype=np.float32)
        for start in range(0, len(order), _SLICE):
            rows = slice(start, start + _SLICE)
            numbers = np.arange(len(order))[rows] + 1
            drawn = _words(order[rows], place[rows], seed)
            _messages(conn, told, words, drawn, order[rows], numbers, session[rows], place[rows])
            _chunks(conn, tokens, drawn, order[rows], numbers, session[rows], place[rows])
            _vectors(conn, order[rows], numbers, basis, rng)
        conn.execute(
            "INSERT INTO index_sizes SELECT user_no, index_no, count(*) FROM vectors GROUP BY user_no, index_no"
        )
        for statement in (*_IDENTITIES, str(row[0]), "VACUUM ANALYZE"):
            conn.execute(statement.encode())
    return {name: number for number, name in enumerate(names, 1)}


def questions(database_url: str, user_no: int, count: int, *, seed: int) -> list[str]:
    """Questions about this user's texts: of one text the two rarest words and two more, and two frequent words."""
    place = {word: n for n, word in enumerate(texts.vocabulary())}
    frequent = list(place)[:100]
    rng = np.random.default_rng(seed)
    with psycopg.connect(database_url) as conn:
        rows = conn.execute(
            "SELECT content FROM messages WHERE user_no = %s ORDER BY md5(message_no::text || %s) LIMIT %s",
            (user_no, str(seed), count),
        ).fetchall()
    asked = []
    for (content,) in rows:
        told = sorted({word for word in content.split() if word in place}, key=place.__getitem__)
        words = [*told[-2:], *rng.choice(told[:-2], 2), *rng.choice(frequent, 2)]
        asked.append("what did I say about " + " ".join(words) + "?")
    return asked


def _running_count(order: NDArray[np.int64], users: int) -> NDArray[np.int64]:
    """For each row: how many earlier rows are the same user's."""
    by_user = np.argsort(order, kind="stable")
    first = np.cumsum(np.bincount(order, minlength=users)) - np.bincount(order, minlength=users)
    place = np.empty_like(order)
    place[by_user] = np.arange(len(order)) - first[order[by_user]]
    return place


def _users(
    conn: Connection, names: Sequence[str], readable: set[str], stems: Sequence[str], rng: np.random.Generator
) -> dict[int, NDArray[np.int64]]:
    """The keyed tokens of the vocabulary, by the place of each user that is read."""
    tokens = {}
    with conn.cursor() as cursor, cursor.copy("COPY users (user_no, user_id, key) FROM STDIN") as copy:
        for number, name in enumerate(names):
            key = rng.bytes(16)
            copy.write_row((number + 1, name, key))
            if name in readable:
                tokens[number] = np.array(key_tokens(key, stems), np.int64)
    return tokens


def _words(users: NDArray[np.int64], place: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """(rows, words) by user, place in the history and seed: so a user says the same beside few others and beside many."""
    row = _mix((users.astype(np.uint64) << np.uint64(32)) + place.astype(np.uint64) + _mix(np.uint64(seed)))
    bits = _mix(row[:, None] + np.arange(texts.WORDS_PER_CHUNK, dtype=np.uint64))
    return texts.draw_words((bits >> np.uint64(11)) / 2**53)


def _tokens_of(
    tokens: Mapping[int, NDArray[np.int64]], users: NDArray[np.int64], drawn: NDArray[np.int64]
) -> NDArray[np.int64]:
    """(rows, words) tokens; a neighbour's are made of its number and the words', and look as keyed hashes do."""
    found: NDArray[np.int64] = _mix((users[:, None] * texts.VOCABULARY + drawn).astype(np.uint64)).view(np.int64)
    for user, own in tokens.items():
        mine = users == user
        found[mine] = own[drawn[mine]]
    return found


def _mix(values: Any) -> Any:
    """Unsigned 64-bit numbers that look random: splitmix64 (Steele, Lea and Flood 2014). It wraps around on purpose."""
    with np.errstate(over="ignore"):
        mixed = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))


def _sessions(conn: Connection, names: Sequence[str], first_session: NDArray[np.int64]) -> None:
    with conn.cursor() as cursor, cursor.copy("COPY sessions (user_no, session_no, session_id) FROM STDIN") as copy:
        for number, name in enumerate(names):
            for session in range(first_session[number] + 1, first_session[number + 1] + 1):
                copy.write_row((number + 1, session, f"{name}-{session}"))


def _messages(
    conn: Connection,
    told: NDArray[np.bool_],
    words: Sequence[str],
    drawn: NDArray[np.int64],
    users: NDArray[np.int64],
    numbers: NDArray[np.int64],
    session: NDArray[np.int64],
    place: NDArray[np.int64],
) -> None:
    statement = "COPY messages (user_no, message_no, session_no, message_id, seq, role, content, created_at) FROM STDIN"
    with conn.cursor() as cursor, cursor.copy(statement) as copy:
        for row in np.flatnonzero(told[users]).tolist():
            copy.write_row(
                (
                    int(users[row]) + 1,
                    int(numbers[row]),
                    int(session[row]),
                    f"m{numbers[row]}",
                    int(place[row]) % SESSION_MESSAGES + 1,
                    "assistant" if place[row] % 2 else "user",
                    " ".join(words[word] for word in drawn[row]),
                    _FIRST + timedelta(minutes=10 * int(place[row])),
                )
            )


def _chunks(
    conn: Connection,
    tokens: Mapping[int, NDArray[np.int64]],
    drawn: NDArray[np.int64],
    users: NDArray[np.int64],
    numbers: NDArray[np.int64],
    session: NDArray[np.int64],
    place: NDArray[np.int64],
) -> None:
    rows = len(users)
    columns = [
        _big(users + 1, ">i8"),
        _big(np.ones(rows), ">i2"),
        _big(numbers, ">i8"),
        _big(session, ">i8"),
        _big(numbers, ">i8"),
        _big(place % SESSION_MESSAGES + 1, ">i8"),
        _big(_FIRST_AT + place * _STEP, ">i8"),
        _big(np.zeros(rows), ">i4"),
        _big(np.full(rows, _CHUNK_CHARS), ">i4"),
        _bigint_arrays(_tokens_of(tokens, users, drawn)),
    ]
    names = "user_no, index_no, chunk_no, session_no, message_no, seq, created_at, start_char, end_char, tokens"
    _copy(conn, f"COPY chunks ({names}) FROM STDIN (FORMAT binary)", columns)


def _vectors(
    conn: Connection,
    users: NDArray[np.int64],
    numbers: NDArray[np.int64],
    basis: NDArray[np.float32] | None,
    rng: np.random.Generator,
) -> None:
    vectors = rng.standard_normal((len(users), DIMENSION if basis is None else len(basis)), dtype=np.float32)
    if basis is not None:
        vectors = vectors @ basis
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    head = _big(np.tile([DIMENSION, 0], (len(users), 1)), ">i2")
    halves = np.concatenate([head, _big(vectors, ">f2")], axis=1)
    columns = [_big(users + 1, ">i8"), _big(np.ones(len(users)), ">i2"), _big(numbers, ">i8"), halves]
    _copy(conn, "COPY vectors (user_no, index_no, chunk_no, embedding) FROM STDIN (FORMAT binary)", columns)


def _copy(conn: Connection, statement: str, columns: Sequence[Bytes]) -> None:
    """Columns of fixed width, (rows, bytes) each, in Postgres's binary COPY format."""
    rows = len(columns[0])
    parts = [_big(np.full(rows, len(columns)), ">i2")]
    for column in columns:
        parts += [_big(np.full(rows, column.shape[1]), ">i4"), column]
    with conn.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        copy.write(_HEADER + np.concatenate(parts, axis=1).tobytes() + _TRAILER)


def _big(values: NDArray[Any], kind: str) -> Bytes:
    """(rows, bytes) of numbers in network order."""
    return np.ascontiguousarray(values.astype(kind)).view(np.uint8).reshape(len(values), -1)


def _bigint_arrays(values: NDArray[np.int64]) -> Bytes:
    """bigint[] of one dimension: its header, then length and value of each element."""
    rows, width = values.shape
    bigint_oid = 20
    head = _big(np.tile([1, 0, bigint_oid, width, 1], (rows, 1)), ">i4")
    body = np.empty((rows, width), dtype=np.dtype([("size", ">i4"), ("value", ">i8")]))
    body["size"], body["value"] = 8, values
    return np.concatenate([head, body.view(np.uint8).reshape(rows, -1)], axis=1)
