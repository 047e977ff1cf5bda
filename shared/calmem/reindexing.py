"""Use case: a new index beside the active one, and recall going over to it and back (docs/reindexing.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from calmem.embedding import probe
from calmem.errors import Conflict, InvalidInput
from calmem.model import IndexState, Lane, Reindex, SearchIndex
from calmem.models import Models, same_model
from calmem.queueing import WakeUps
from calmem.settings import Settings
from calmem.storage import indexes, reindexes
from calmem.storage.pool import Connection, Database

_NONE = (
    "there is no index beside the active one; `calmem reindex --model NAME` or `--chunking CHARS/OVERLAP` starts one"
)


class Reindexing:
    """Starts, steers and reports a reindex; workers do it. Safe to share between threads.

    Every method but `start` and `status` raises Conflict, and changes nothing, in a state that it does not fit; any
    raises TransientError when the database cannot be reached.
    """

    def __init__(self, database: Database, settings: Settings, models: Models, wake_ups: WakeUps) -> None:
        self._database = database
        self._settings = settings
        self._models = models
        self._wake_ups = wake_ups

    def start(
        self,
        *,
        model: str | None = None,
        model_path: str | None = None,
        chunk_chars: int | None = None,
        overlap_chars: int | None = None,
        min_cosine: float | None = None,
        switches: bool = True,
    ) -> Reindex:
        """A new index beside the active one, with what is given and the rest as it is there.

        `model_path`: a directory that every worker and every process that recalls can read; its name stands for
        `model` when that is not given. `min_cosine`: the model's own threshold (0 to 1). `switches`: recall goes over
        as soon as it is complete. Raises InvalidInput when nothing would change, ModelUnavailable when the model
        cannot be loaded here, Conflict while another index is beside the active one. Nothing is written then.
        """
        with self._database.connection() as conn:
            active, *beside = indexes.in_use(conn)
            _refuse_second(beside)
            messages = reindexes.count_messages(conn)
        wanted = replace(
            active,
            index_no=-1,
            chunk_chars=active.chunk_chars if chunk_chars is None else chunk_chars,
            overlap_chars=active.overlap_chars if overlap_chars is None else overlap_chars,
        )
        if not 1 <= wanted.chunk_chars <= 100_000:
            raise InvalidInput("chunking", "a chunk must have 1 to 100000 characters")
        if not 0 <= wanted.overlap_chars < wanted.chunk_chars:
            raise InvalidInput("chunking", "the overlap must be smaller than the chunk, and not negative")
        if min_cosine is not None and not 0 <= min_cosine <= 1:
            raise InvalidInput("min_cosine", "must be between 0 and 1")
        if model is None and model_path is None:
            wanted = replace(wanted, min_cosine=active.min_cosine if min_cosine is None else min_cosine)
        else:
            name, path = self._named(model, model_path)
            # Without a probe, whatever is found under the name is taken; its own is remembered below.
            wanted = replace(wanted, model=name, model_path=path, probe=None, dimension=None, min_cosine=min_cosine)
        computed = probe(self._models.for_index(wanted))
        wanted = replace(wanted, probe=computed, dimension=len(computed))
        if (wanted.chunk_chars, wanted.overlap_chars) == (active.chunk_chars, active.overlap_chars) and (
            same_model(wanted, active)
        ):
            raise InvalidInput("reindex", "the active index has this model and this chunking already")
        with self._database.connection() as conn:
            indexes.lock_alone(conn)
            _refuse_second(indexes.in_use(conn)[1:])
            if active.probe is None and model is None and model_path is None:
                indexes.settle_probe(conn, active.index_no, computed)
            added = indexes.add_index(
                conn,
                model=wanted.model,
                model_path=wanted.model_path,
                probe=computed,
                chunk_chars=wanted.chunk_chars,
                overlap_chars=wanted.overlap_chars,
                min_cosine=wanted.min_cosine,
            )
            reindexes.begin(conn, added.index_no, messages=messages, switches=switches)
            found = reindexes.progress(conn, added)
        self._wake_ups.push(Lane.REINDEX)
        return found

    def _named(self, model: str | None, model_path: str | None) -> tuple[str, str]:
        """(name, directory) of the model asked for; the directory of the settings holds the settings' model."""
        if model_path is None:
            assert model is not None
            path = self._settings.model_path if model == self._settings.model else ""
        else:
            path = model_path
        directory = Path(path).expanduser().resolve() if path else None
        if directory is not None and not directory.is_dir():
            raise InvalidInput("model_path", f"must be the model's directory; {directory} is none")
        return model or (directory.name if directory else ""), str(directory or "")

    def status(self) -> tuple[SearchIndex, list[Reindex]]:
        """The active index; the one beside it, and those whose rows are being removed."""
        with self._database.connection() as conn:
            active, *beside = indexes.in_use(conn)
            removed = indexes.by_number(conn, reindexes.to_remove(conn))
            return active, [reindexes.progress(conn, index) for index in (*beside, *removed)]

    def pause(self) -> Reindex:
        """Workers leave the new index alone; what is recorded meanwhile is noted for it, and found by its words."""
        return self._change(_pause)

    def resume(self) -> Reindex:
        """Workers go on where they stopped."""
        found = self._change(_resume)
        self._wake_ups.push(Lane.REINDEX)
        return found

    def switch(self) -> Reindex:
        """Recall goes over to the new index, in every process with its next request. Raises Conflict until it is complete.

        Returns the former one, which is kept up to date.
        """
        return self._change(_switch)

    def rollback(self) -> Reindex:
        """Recall goes back to the former index. Returns the new one, which is kept up to date and waits for `switch`."""
        return self._change(_rollback)

    def cancel(self) -> Reindex:
        """Give up the new index; its rows are removed by the workers."""
        return self._retire(
            {IndexState.BUILDING, IndexState.PAUSED},
            "the index beside the active one is the former one: `calmem reindex finish` removes it",
        )

    def finish(self) -> Reindex:
        """Give up the former index, after which there is no way back; its rows are removed by the workers."""
        return self._retire(
            {IndexState.KEPT}, "recall has not gone over to the new index yet: `calmem reindex cancel` gives it up"
        )

    def _change(self, call: Callable[[Connection, SearchIndex, SearchIndex], None]) -> Reindex:
        with self._database.connection() as conn:
            active, *beside = indexes.lock_states(conn)
            if not beside:
                raise Conflict(_NONE)
            call(conn, active, beside[0])
            return reindexes.progress(conn, indexes.in_use(conn)[1])

    def _retire(self, states: set[IndexState], otherwise: str) -> Reindex:
        with self._database.connection() as conn:
            indexes.lock_alone(conn)
            _, *beside = indexes.lock_states(conn)
            if not beside:
                raise Conflict(_NONE)
            (given_up,) = beside
            if given_up.state not in states:
                raise Conflict(otherwise)
            reindexes.retire(conn, given_up.index_no)
            found = reindexes.progress(conn, replace(given_up, state=IndexState.RETIRED))
        self._wake_ups.push(Lane.REINDEX)
        return found


def _refuse_second(beside: list[SearchIndex]) -> None:
    if beside and beside[0].state is IndexState.KEPT:
        raise Conflict("the former index is still kept for a rollback: `calmem reindex finish` first")
    if beside:
        raise Conflict("a reindex is under way: `calmem reindex status` shows it, `calmem reindex cancel` gives it up")


def _pause(conn: Connection, _active: SearchIndex, beside: SearchIndex) -> None:
    if beside.state is not IndexState.BUILDING:
        raise Conflict(f"only an index that is being built can be paused; this one is {beside.state}")
    indexes.set_states(conn, {beside.index_no: IndexState.PAUSED})


def _resume(conn: Connection, _active: SearchIndex, beside: SearchIndex) -> None:
    if beside.state is not IndexState.PAUSED:
        raise Conflict(f"nothing is paused; the index beside the active one is {beside.state}")
    reindexes.going_again(conn, beside.index_no)
    indexes.set_states(conn, {beside.index_no: IndexState.BUILDING})


def _switch(conn: Connection, active: SearchIndex, beside: SearchIndex) -> None:
    if beside.state is not IndexState.BUILDING:
        raise Conflict(f"there is no new index to go over to; the one beside the active one is {beside.state}")
    found = reindexes.progress(conn, beside)
    if not found.complete:
        raise Conflict(
            f"the new index is not complete: {found.done} of {found.messages} messages are done; a worker goes on with it"
        )
    change_places(conn, active, beside)


def _rollback(conn: Connection, active: SearchIndex, beside: SearchIndex) -> None:
    if beside.state is not IndexState.KEPT:
        raise Conflict("recall has not gone over to a new index; there is nothing to roll back")
    indexes.set_states(conn, {active.index_no: IndexState.BUILDING, beside.index_no: IndexState.ACTIVE})


def change_places(conn: Connection, active: SearchIndex, new: SearchIndex) -> None:
    """Recall goes over to `new`, which is complete; the active one is kept. The caller holds `indexes.lock_states`.

    After a rollback `new` does not go over by itself again.
    """
    reindexes.hold(conn, new.index_no)
    indexes.set_states(conn, {active.index_no: IndexState.KEPT, new.index_no: IndexState.ACTIVE})
