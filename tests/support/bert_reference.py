"""all-MiniLM-L6-v2 in NumPy, text by text, from the published weights: what the vectors ought to be."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tokenizers import Tokenizer

Array = NDArray[np.float64]
_erf = np.vectorize(math.erf)


class Reference:
    """Reads `model.safetensors` and `tokenizer.json` from a directory; computes in double precision."""

    def __init__(self, directory: Path) -> None:
        self._weights = {name: value.astype(np.float64) for name, value in _load(directory).items() if value.ndim}
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(256)

    def embed(self, text: str) -> Array:
        """(384,), unit length."""
        ids = self._tokenizer.encode(text).ids
        w = self._weights
        summed = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0]
        x = self._norm(summed + w["embeddings.position_embeddings.weight"][: len(ids)], "embeddings.LayerNorm")
        for layer in range(6):
            x = self._layer(x, f"encoder.layer.{layer}")
        mean: Array = x.mean(axis=0)
        return mean / np.linalg.norm(mean)

    def _layer(self, x: Array, name: str) -> Array:
        heads = []
        query, key, value = (self._dense(x, f"{name}.attention.self.{part}") for part in ("query", "key", "value"))
        for head in np.split(np.arange(384), 12):
            scores = query[:, head] @ key[:, head].T / math.sqrt(32)
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            heads.append(shares / shares.sum(axis=1, keepdims=True) @ value[:, head])
        attended = self._dense(np.concatenate(heads, axis=1), f"{name}.attention.output.dense")
        x = self._norm(x + attended, f"{name}.attention.output.LayerNorm")
        inner = self._dense(x, f"{name}.intermediate.dense")
        gelu = inner * 0.5 * (1 + _erf(inner / math.sqrt(2)))
        return self._norm(x + self._dense(gelu, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    def _dense(self, x: Array, name: str) -> Array:
        return x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _norm(self, x: Array, name: str) -> Array:
        centred = x - x.mean(axis=1, keepdims=True)
        scaled: Array = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-12)
        return scaled * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]


def _load(directory: Path) -> dict[str, NDArray[np.float32]]:
    loaded: dict[str, NDArray[np.float32]] = load_file(directory / "model.safetensors")
    return loaded
