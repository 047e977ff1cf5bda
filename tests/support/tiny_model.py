"""A second real model for tests: random weights, another dimension, the tokenizer of the first."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from calmem.embedding import bundled


def write_tiny_model(directory: Path, dimension: int, seed: int) -> Path:
    """Write a model of word vectors and one mixing layer into `directory`; returns it.

    The tokenizer comes from the installed bundled package. Another seed makes another model.
    """
    directory.mkdir(parents=True, exist_ok=True)
    ready = bundled.prepare(directory.parent / "models")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copyfile(ready / name, directory / name)
    words = int(json.loads((directory / "config.json").read_text("utf-8"))["vocab_size"])
    random = np.random.default_rng(seed)
    weights = {
        "words": random.standard_normal((words, dimension)).astype(np.float32),
        "mix": random.standard_normal((dimension, dimension)).astype(np.float32) / np.float32(dimension**0.5),
    }
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["embedded"]),
        helper.make_node("MatMul", ["embedded", "mix"], ["mixed"]),
        helper.make_node("Tanh", ["mixed"], ["last_hidden_state"]),
    ]
    names = ("input_ids", "attention_mask")
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in names]
    output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "length", dimension])
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "tiny", inputs, [output], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(directory / "model.onnx"))
    return directory
