"""A real worker process whose embedder misbehaves on purpose: an error path that the real model never takes.

    python -m tests.support.odd_worker [--gate FILE]

Texts with POISON make it raise, texts with DEADLY kill the process, and with a gate every batch waits until
the file exists (a line `waiting` in FILE.waiting says that one does).
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calmem import logs
from calmem.embedding import PROBE_TEXT, Embedder
from calmem.model import SearchIndex
from calmem.models import Models
from calmem.settings import Settings
from calmem_workers.main import run_worker
from tests.support.embedders import PassingOn


class OddEmbedder(PassingOn):
    """The real embedder, with the accidents above."""

    def __init__(self, real: Embedder, gate: Path | None) -> None:
        super().__init__(real)
        self._gate = gate

    def count_pieces(self, text: str) -> int:
        if "UNCOUNTABLE" in text:
            raise RuntimeError("the tokenizer met a text that it cannot count")
        return super().count_pieces(text)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if self._gate is not None and list(texts) != [PROBE_TEXT]:
            self._gate.with_suffix(".waiting").touch()
            while not self._gate.exists():
                time.sleep(0.02)
        if any("DEADLY" in text for text in texts):
            os.kill(os.getpid(), signal.SIGKILL)
        if any("POISON" in text for text in texts):
            raise ValueError("the runtime met a text that it cannot embed")
        vectors = super().embed(texts)
        vectors[["NAN" in text for text in texts]] = np.nan
        return vectors


class OddModels(Models):
    def __init__(self, settings: Settings, gate: Path | None) -> None:
        super().__init__(settings)
        self._gate = gate

    def for_index(self, index: SearchIndex, *, wait_seconds: float | None = None) -> Embedder:
        return OddEmbedder(super().for_index(index, wait_seconds=wait_seconds), self._gate)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gate", type=Path)
    settings = Settings.from_env()
    logs.configure(settings)
    run_worker(settings, models=OddModels(settings, parser.parse_args().gate))


if __name__ == "__main__":
    main()
