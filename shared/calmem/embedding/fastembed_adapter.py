"""fastembed behind the Embedder protocol, with batches formed by length."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calmem.embedding import word_files
from calmem.errors import ModelUnavailable

# Padded word pieces of one batch. On the processors tried, 256 to 512 stay in the cache and were fastest, 2,048 a third slower.
BATCH_PIECES = 512
# Texts held as word pieces at once; bounds memory whatever the caller hands over.
SLICE_TEXTS = 1_024


class FastembedEmbedder:
    """One ONNX model run by fastembed. Safe to share between threads.

    `open_session` opens the model's file in another runtime than onnxruntime; what it returns answers to `run` and
    `get_inputs` as onnxruntime's session does. Word pieces, pooling and unit length stay fastembed's.
    """

    def __init__(
        self, name: str, directory: Path, *, threads: int, open_session: Callable[[Path], Any] | None = None
    ) -> None:
        # Imported here: it takes a second, and a process that only records never needs it.
        from tokenizers import Tokenizer

        self.name = name
        self.words = word_files.read(directory)
        self._model = _open(name, directory, threads, open_session)
        # The limit that fastembed cuts at, whichever of its files it came from.
        self.max_pieces = int(self._model.model.tokenizer.truncation["max_length"])
        self._counter = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._counter.no_padding()
        self._counter.no_truncation()
        self._unknown = _unknown_piece(json.loads(self._counter.to_str()))
        self.dimension = len(self.embed_query("dimension"))

    def count_pieces(self, text: str) -> int:
        return len(self._counter.encode(text).ids)

    def count_unknown(self, text: str) -> int:
        return self._counter.encode(text, add_special_tokens=False).tokens.count(self._unknown)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        for first in range(0, len(texts), SLICE_TEXTS):
            part = texts[first : first + SLICE_TEXTS]
            lengths = [min(len(e.ids), self.max_pieces) for e in self._counter.encode_batch(list(part))]
            for batch in _batches(lengths):
                found = self._model.embed([part[i] for i in batch], batch_size=len(batch))
                vectors[[first + i for i in batch]] = _unit(np.stack(list(found)))
        return vectors

    def embed_query(self, text: str) -> NDArray[np.float32]:
        vector: NDArray[np.float32] = _unit(np.stack(list(self._model.embed([text], batch_size=1))))[0]
        return vector


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Positions by falling length, so that the longest batch comes first and padding stays small."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        longest = lengths[batch[0]] if batch else lengths[place]
        if batch and longest * (len(batch) + 1) > BATCH_PIECES:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: NDArray[np.float32] = (vectors / np.maximum(norms, 1e-12)).astype(np.float32)
    return unit


def _unknown_piece(tokenizer: dict[str, Any]) -> str:
    """What a tokenizer writes for what it does not know; WordPiece names it, Unigram gives its place in the vocabulary."""
    model = tokenizer["model"]
    if model.get("unk_id") is not None:
        return str(model["vocab"][model["unk_id"]][0])
    return str(model.get("unk_token"))


def _check_json(directory: Path) -> None:
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        path = directory / file
        try:
            json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            continue  # some models have no config.json; fastembed names the others
        except ValueError as exc:
            raise ModelUnavailable(f"{path} is damaged: it is not JSON") from exc


def _open(name: str, directory: Path, threads: int, open_session: Callable[[Path], Any] | None) -> Any:
    _check_json(directory)
    # onnxruntime's wheel reports its use to its maker, unless it was told not to before it is imported.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    known = {model["model"].lower() for model in TextEmbedding.list_supported_models()}
    if name.lower() not in known:
        TextEmbedding.add_custom_model(
            model=name,
            pooling=PoolingType.MEAN,
            normalization=True,
            sources=ModelSource(hf=name),
            dim=1,  # only a label here; the true one is measured
            model_file="model.onnx",
        )
    try:
        if open_session is None:
            return TextEmbedding(name, specific_model_path=str(directory), threads=threads or None)
        model = TextEmbedding(name, specific_model_path=str(directory), lazy_load=True)
        model.token_count("")  # loads the tokenizer, and no session of onnxruntime's
        model.model.model = open_session(directory / model.model.model_description.model_file)
        return model
    except ModelUnavailable:
        raise
    # onnxruntime has no public root of its errors; whatever it raises here means that the file is no good.
    except Exception as exc:
        raise ModelUnavailable(f"{directory / 'model.onnx'} cannot be loaded: it is damaged or no ONNX model") from exc
