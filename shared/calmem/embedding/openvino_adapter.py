"""OpenVINO as the runtime below fastembed: the same vectors, faster where the processor computes in bf16."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from calmem.embedding.fastembed_adapter import FastembedEmbedder
from calmem.embedding.protocol import PROBE_TEXT
from calmem.errors import ModelUnavailable

log = structlog.get_logger(__name__)

# Vectors of the two runtimes are used as one: they meet in one search.
INTERCHANGEABLE_COSINE = 0.9999
# Of different lengths, so that one batch holds padding: where bf16 went wrong, it was there.
_TRIED = (PROBE_TEXT, "ok", "我们的数据库放在第三台机器上。", f"{PROBE_TEXT} " * 6)


def installed() -> bool:
    return util.find_spec("openvino") is not None


@cache
def has_bf16() -> bool:
    """Whether OpenVINO says that this processor computes in bf16 (AMX, or AVX-512 with bf16)."""
    return "BF16" in _core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


class OpenvinoEmbedder(FastembedEmbedder):
    """fastembed with OpenVINO in onnxruntime's place. Safe to share between threads.

    In bf16 where the processor has it and this model's vectors stay interchangeable with those in float32; else in float32.
    """

    def __init__(self, name: str, directory: Path, *, threads: int) -> None:
        super().__init__(name, directory, threads=threads, open_session=lambda file: _Session(file, "f32", threads))
        self.precision = "f32"
        if has_bf16():
            self._try_bf16()

    def _try_bf16(self) -> None:
        exact, expected = self._model.model.model, self.embed(_TRIED)
        self._model.model.model = exact.reopened("bf16")
        cosine = float(np.min(np.sum(expected * self.embed(_TRIED), axis=1)))
        if cosine >= INTERCHANGEABLE_COSINE:
            self.precision = "bf16"
        else:
            log.warning("bf16_changes_vectors", model=self.name, cosine=round(cosine, 5))
            self._model.model.model = exact


@dataclass(frozen=True)
class _Input:
    name: str


class _Session:
    """What fastembed uses of onnxruntime's InferenceSession, for any number of threads at once."""

    def __init__(self, path: Path, precision: str, threads: int) -> None:
        self._path, self._threads = path, threads
        processors = len(os.sched_getaffinity(0))
        threads = min(threads or processors, processors)
        # As in onnxruntime, `threads` is for one call; calls side by side each have a stream of their own.
        streams = processors // threads
        options = {
            "INFERENCE_PRECISION_HINT": precision,
            "NUM_STREAMS": streams,
            "INFERENCE_NUM_THREADS": streams * threads,
            # Each process would pin itself to the same first processors.
            "ENABLE_CPU_PINNING": False,
        }
        try:
            self._model = _core().compile_model(str(path), "CPU", options)
        except RuntimeError as exc:  # the one error that OpenVINO raises
            raise ModelUnavailable(
                f"{path} cannot be loaded: it is damaged, or no ONNX model that OpenVINO can run (CALMEM_RUNTIME=fastembed may)"
            ) from exc
        self._inputs = [_Input(port.any_name) for port in self._model.inputs]
        self._local = threading.local()

    def reopened(self, precision: str) -> _Session:
        return _Session(self._path, precision, self._threads)

    def get_inputs(self) -> Sequence[_Input]:
        return self._inputs

    def run(self, names: Sequence[str] | None, inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        request = getattr(self._local, "request", None)
        if request is None:
            request = self._local.request = self._model.create_infer_request()
        found = request.infer(dict(inputs), share_inputs=True)
        return [found[port] for port in self._model.outputs] if names is None else [found[name] for name in names]


@cache
def _core() -> Any:
    # Importing openvino reports the import to its makers and leaves an id in the home directory, unless the package
    # that does so is missing; then it goes without.
    absent = "openvino_telemetry" not in sys.modules
    if absent:
        sys.modules["openvino_telemetry"] = None  # type: ignore[assignment] # Python's way to say: cannot be imported
    try:
        from openvino import Core
    finally:
        if absent:
            del sys.modules["openvino_telemetry"]
    return Core()
