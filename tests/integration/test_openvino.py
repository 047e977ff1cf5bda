"""OpenVINO below fastembed: the default's vectors, whatever the processor and the model."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from calmem import embedding
from calmem.embedding import Embedder, bundled, openvino_adapter
from calmem.embedding.fastembed_adapter import BATCH_PIECES, SLICE_TEXTS
from calmem.embedding.openvino_adapter import OpenvinoEmbedder
from calmem.errors import InvalidInput, ModelUnavailable
from calmem.settings import Settings
from tests.support.tiny_model import write_tiny_model

needs_openvino = pytest.mark.skipif(not openvino_adapter.installed(), reason="openvino is not installed")

TEXTS = [
    "",
    "ok",
    "She moved the meeting with Priya to Thursday at half past nine.",
    'ERROR: relation "index_tasks" does not exist (SQLSTATE 42P01), see /var/log/calmem/worker.log',
    "我们把库存数据库放在第三台机器上，每天凌晨两点备份。",
    "カメラの充電器を忘れた",
    "🎉🎂 happy birthday 👩‍👩‍👧 🏳️‍🌈 !!! ❤️",
    "naïve café, Straße, Ελλάδα, привет, مرحبا",
    "def pack(items, budget):\n    return [i for i in items if i.tokens <= budget]\n",
    "a" * 3_000,
    "The river ran past an old mill, and nobody in the village remembered who had built it. " * 40,
    "文" * 700,
]


@pytest.fixture(scope="module")
def default(model_dir: Path) -> Embedder:
    return embedding.load(Settings(data_dir=str(model_dir), runtime="fastembed"))


@pytest.fixture(scope="module")
def faster(model_dir: Path) -> OpenvinoEmbedder:
    found = embedding.load(Settings(data_dir=str(model_dir), runtime="openvino"))
    assert isinstance(found, OpenvinoEmbedder)
    return found


def _processor_flags() -> set[str]:
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    return {flag for line in lines if line.startswith("flags") for flag in line.split()}


def _least_cosine(left: NDArray[np.float32], right: NDArray[np.float32]) -> float:
    return float(np.min(np.sum(left * right, axis=1)))


@needs_openvino
def test_vectors_are_interchangeable_with_the_default_s(default: Embedder, faster: OpenvinoEmbedder) -> None:
    assert sum(default.count_pieces(text) > default.max_pieces for text in TEXTS) >= 2
    expected = default.embed(TEXTS)
    assert _least_cosine(expected, faster.embed(TEXTS)) >= 0.9999
    assert _least_cosine(expected, np.stack([faster.embed_query(text) for text in TEXTS])) >= 0.9999


@needs_openvino
def test_it_is_recorded_as_the_same_model(default: Embedder, faster: OpenvinoEmbedder) -> None:
    assert (faster.name, faster.dimension, faster.max_pieces) == (default.name, default.dimension, default.max_pieces)
    assert float(embedding.probe(default) @ embedding.probe(faster)) >= 0.9999
    assert [faster.count_pieces(text) for text in TEXTS] == [default.count_pieces(text) for text in TEXTS]


@needs_openvino
def test_bf16_is_used_where_the_processor_has_it(model_dir: Path, faster: OpenvinoEmbedder) -> None:
    has = bool(_processor_flags() & {"amx_bf16", "avx512_bf16", "avx_ne_convert"})
    assert faster.precision == ("bf16" if has else "f32")
    assert isinstance(embedding.load(Settings(data_dir=str(model_dir), runtime="auto")), OpenvinoEmbedder) is has


@needs_openvino
def test_a_processor_without_bf16_falls_back_by_itself(
    monkeypatch: pytest.MonkeyPatch, model_dir: Path, default: Embedder
) -> None:
    """Replaces the question to the processor: an error path that this machine may not have."""
    monkeypatch.setattr(openvino_adapter, "has_bf16", lambda: False)
    assert type(embedding.load(Settings(data_dir=str(model_dir), runtime="auto"))) is type(default)
    asked_for = embedding.load(Settings(data_dir=str(model_dir), runtime="openvino"))
    assert isinstance(asked_for, OpenvinoEmbedder)
    assert asked_for.precision == "f32"
    assert _least_cosine(default.embed(TEXTS), asked_for.embed(TEXTS)) >= 0.9999


@needs_openvino
def test_a_graph_that_bf16_cannot_hold_still_gives_the_default_s_vectors(default: Embedder, tmp_path: Path) -> None:
    """With a mask near the end of float32's range, bf16 on some processors computes vectors of cosine 0.2."""
    directory = _copied(tmp_path)
    model = onnx.load(str(directory / "model.onnx"))
    (low,) = (constant for constant in model.graph.initializer if constant.name == "low")
    low.CopyFrom(numpy_helper.from_array(np.array(-3.0e38, np.float32), "low"))
    onnx.save(model, str(directory / "model.onnx"))
    found = embedding.load(Settings(model="acme/low", model_path=str(directory), runtime="openvino"))
    assert _least_cosine(default.embed(TEXTS), found.embed(TEXTS)) >= 0.9999


@needs_openvino
def test_a_graph_that_openvino_cannot_run_is_left_to_fastembed(
    monkeypatch: pytest.MonkeyPatch, default: Embedder, tmp_path: Path
) -> None:
    """The processor is said to have bf16, so that `auto` tries OpenVINO on every machine."""
    monkeypatch.setattr(openvino_adapter, "has_bf16", lambda: True)
    directory = _copied(tmp_path)
    model = onnx.load(str(directory / "model.onnx"))
    model.graph.node[-1].output[0] = "echoed"
    model.graph.node.append(helper.make_node("SampleOp", ["echoed"], ["last_hidden_state"], domain="com.microsoft"))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, str(directory / "model.onnx"))
    settings = Settings(model="acme/echo", model_path=str(directory))
    with pytest.raises(ModelUnavailable, match="CALMEM_RUNTIME=fastembed"):
        embedding.load(replace(settings, runtime="openvino"))
    found = embedding.load(replace(settings, runtime="auto"))
    assert _least_cosine(default.embed(TEXTS), found.embed(TEXTS)) >= 0.9999


@needs_openvino
def test_the_last_sentence_of_a_full_size_chunk_changes_the_vector(faster: OpenvinoEmbedder) -> None:
    body = "the river ran past an old mill . " * 29
    ends = [body + "she sold the violin .", body + "he paid the taxes ."]
    assert all(230 <= faster.count_pieces(text) <= faster.max_pieces for text in ends)
    left, right = faster.embed(ends)
    assert float(left @ right) < 0.999


@needs_openvino
def test_batches_are_bounded_whatever_the_mix(
    monkeypatch: pytest.MonkeyPatch, default: Embedder, faster: OpenvinoEmbedder
) -> None:
    session = faster._model.model.model
    run, sizes = session.run, list[int]()

    def watched(names: Sequence[str] | None, inputs: dict[str, NDArray[np.int64]]) -> list[NDArray[np.float32]]:
        sizes.append(inputs["input_ids"].size)
        found: list[NDArray[np.float32]] = run(names, inputs)
        return found

    monkeypatch.setattr(session, "run", watched)
    mix = [f"number {place}" for place in range(SLICE_TEXTS + 500)]
    mix[7], mix[-1] = "one very long text " * 20_000, "文" * 400
    vectors = faster.embed(mix)
    assert max(sizes) <= BATCH_PIECES
    assert len(sizes) < len(mix) / 10
    places = [0, 6, 7, 8, SLICE_TEXTS - 1, SLICE_TEXTS, len(mix) - 1]
    assert _least_cosine(default.embed([mix[place] for place in places]), vectors[places]) >= 0.9999


@needs_openvino
def test_no_texts_give_no_vectors(faster: OpenvinoEmbedder) -> None:
    assert faster.embed([]).shape == (0, 384)


@needs_openvino
def test_threads_share_an_embedder_and_have_streams_of_their_own(default: Embedder, faster: OpenvinoEmbedder) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(faster.embed_query, TEXTS * 4))
    assert _least_cosine(np.tile(default.embed(TEXTS), (4, 1)), np.stack(found)) >= 0.9999
    processors = len(os.sched_getaffinity(0))
    assert faster._model.model.model._model.get_property("NUM_STREAMS") == processors


@needs_openvino
@pytest.mark.parametrize("threads", [0, 2, 1_000])
def test_one_call_has_the_threads_it_was_given(model_dir: Path, threads: int) -> None:
    found = embedding.load(Settings(data_dir=str(model_dir), runtime="openvino", embed_threads=threads))
    assert isinstance(found, OpenvinoEmbedder)
    compiled = found._model.model.model._model
    processors = len(os.sched_getaffinity(0))
    of_one_call = min(threads or processors, processors)
    assert compiled.get_property("NUM_STREAMS") == processors // of_one_call
    assert compiled.get_property("INFERENCE_NUM_THREADS") == of_one_call * (processors // of_one_call)


@needs_openvino
def test_a_model_of_another_dimension_works(tmp_path: Path) -> None:
    settings = Settings(model="acme/tiny", model_path=str(write_tiny_model(tmp_path / "tiny", 64, 1)))
    left, right = (embedding.load(replace(settings, runtime=runtime)) for runtime in ("fastembed", "openvino"))
    assert left.dimension == right.dimension == 64
    assert _least_cosine(left.embed(TEXTS), right.embed(TEXTS)) >= 0.9999


@needs_openvino
def test_a_damaged_graph_is_refused_by_its_name(tmp_path: Path) -> None:
    path = _copied(tmp_path) / "model.onnx"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ModelUnavailable, match=r"model\.onnx"):
        embedding.load(Settings(model_path=str(path.parent), runtime="openvino"))


@needs_openvino
def test_nothing_is_reported_to_anyone(model_dir: Path, tmp_path: Path) -> None:
    """Imported as it comes, openvino leaves an id in the home directory and sends an event."""
    code = (
        "import sys; from calmem import embedding; from calmem.settings import Settings; "
        "embedding.load(Settings(data_dir=sys.argv[1], runtime='openvino')); "
        "assert 'openvino' in sys.modules and 'openvino_telemetry' not in sys.modules"
    )
    environ = {name: value for name, value in os.environ.items() if name != "CI"} | {"HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code, str(model_dir)], env=environ, check=True, timeout=300)
    assert not (tmp_path / "intel").exists()


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, model_dir: Path) -> None:
    monkeypatch.setattr(openvino_adapter, "installed", lambda: False)
    with pytest.raises(ModelUnavailable, match=r"pip install 'calmem\[openvino\]'"):
        embedding.load(Settings(data_dir=str(model_dir), runtime="openvino"))
    found = embedding.load(Settings(data_dir=str(model_dir), runtime="auto"))
    assert not isinstance(found, OpenvinoEmbedder)


def test_an_unknown_runtime_is_refused(model_dir: Path) -> None:
    with pytest.raises(InvalidInput, match="CALMEM_RUNTIME"):
        embedding.load(Settings(data_dir=str(model_dir), runtime="tensorrt"))


def _copied(tmp_path: Path) -> Path:
    """The bundled model as a directory that the test may change."""
    return Path(shutil.copytree(bundled.prepare(tmp_path / "models"), tmp_path / "model"))
