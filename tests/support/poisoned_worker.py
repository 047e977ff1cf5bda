"""A real worker whose embedder fails on, or is slow with, texts that say so. For tests of error paths only."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calmem import embedding, logs
from calmem.embedding.fastembed_adapter import FastembedEmbedder
from calmem.settings import Settings
from calmem_workers.main import run_worker

POISON = "poison-7f3a"
DEADLY = "deadly-7f3a"
SLOW = "slow-7f3a"


class Poisoned:
    """The real embedder, but `POISON` raises, `DEADLY` ends the process, and `SLOW` takes a second a text."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        for text in texts:
            if POISON in text:
                raise RuntimeError("the runtime does not like this text")
            if DEADLY in text:
                os._exit(137)
            if SLOW in text:
                print("embedding slowly", file=sys.stderr, flush=True)
                time.sleep(1)
        vectors: NDArray[np.float32] = self._real.embed(texts)
        return vectors


def _load(settings: Settings, model: str | None = None) -> Any:
    real = _real_load(settings, model)
    assert isinstance(real, FastembedEmbedder)
    return Poisoned(real)


_real_load = embedding.load

if __name__ == "__main__":
    embedding.load = _load
    chosen = Settings.from_env()
    logs.configure(chosen)
    run_worker(chosen)
