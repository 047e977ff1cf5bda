"""all-MiniLM-L6-v2 as an ONNX graph: BERT with six layers, twelve heads of 32, written from its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from safetensors import safe_open
from safetensors.numpy import load_file

LAYERS = 6
HEADS = 12
HIDDEN = 384
_EPSILON = 1e-12
_WORD_PIECES = "embeddings.word_embeddings.weight"


def write_graph(weights: Path, path: Path) -> None:
    """Write the graph: (batch, length) input_ids, attention_mask, token_type_ids -> (batch, length, 384)."""
    graph = _Graph(load_file(weights))
    hidden = graph.embeddings()
    bias = graph.mask()
    for layer in range(LAYERS):
        hidden = graph.layer(hidden, bias, layer)
    graph.add("Identity", [hidden], "last_hidden_state")
    onnx.save(graph.model(), str(path))


def word_pieces(weights: Path) -> NDArray[np.float32]:
    """The table by which the model embeds its word pieces, (pieces, 384)."""
    with safe_open(weights, framework="numpy") as file:
        table: NDArray[np.float32] = file.get_tensor(_WORD_PIECES).astype(np.float32)
    return table


class _Graph:
    def __init__(self, weights: dict[str, NDArray[Any]]) -> None:
        self._weights = weights
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}

    def add(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self._nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def constant(self, name: str, value: NDArray[Any]) -> str:
        self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def weight(self, name: str) -> str:
        return self.constant(name, self._weights[name].astype(np.float32))

    def dense(self, x: str, prefix: str, output: str) -> str:
        kernel = self.constant(f"{prefix}.kernel", self._weights[f"{prefix}.weight"].astype(np.float32).T)
        return self.add(
            "Add", [self.add("MatMul", [x, kernel], f"{output}.product"), self.weight(f"{prefix}.bias")], output
        )

    def norm(self, x: str, prefix: str, output: str) -> str:
        scale, bias = self.weight(f"{prefix}.weight"), self.weight(f"{prefix}.bias")
        return self.add("LayerNormalization", [x, scale, bias], output, axis=-1, epsilon=_EPSILON)

    def embeddings(self) -> str:
        words = self.add("Gather", [self.weight(_WORD_PIECES), "input_ids"], "words")
        types = self.add("Gather", [self.weight("embeddings.token_type_embeddings.weight"), "token_type_ids"], "types")
        shape = self.add("Shape", ["input_ids"], "shape")
        length = self.add("Gather", [shape, self.constant("one", np.array([1], np.int64))], "length")
        zero = self.constant("zero", np.array([0], np.int64))
        table = self.weight("embeddings.position_embeddings.weight")
        places = self.add("Slice", [table, zero, length, zero], "places")
        summed = self.add("Add", [self.add("Add", [words, types], "words_types"), places], "summed")
        return self.norm(summed, "embeddings.LayerNorm", "embedded")

    def mask(self) -> str:
        """(batch, 1, 1, length): 0 for a word piece, a very low number for padding.

        exp(-1e4) is 0 already; nearer to the end of the range, OpenVINO in bf16 loses the scores beside it.
        """
        mask = self.add("Cast", ["attention_mask"], "mask_float", to=TensorProto.FLOAT)
        wide = self.add("Unsqueeze", [mask, self.constant("axes", np.array([1, 2], np.int64))], "mask_wide")
        away = self.add("Sub", [self.constant("float_one", np.array(1.0, np.float32)), wide], "mask_away")
        return self.add("Mul", [away, self.constant("low", np.array(-1.0e4, np.float32))], "mask_bias")

    def layer(self, x: str, bias: str, number: int) -> str:
        source, here = f"encoder.layer.{number}", f"layer{number}"
        heads = self.constant("heads", np.array([0, 0, HEADS, HIDDEN // HEADS], np.int64))

        def split(part: str, order: list[int]) -> str:
            projected = self.dense(x, f"{source}.attention.self.{part}", f"{here}.{part}")
            return self.add(
                "Transpose",
                [self.add("Reshape", [projected, heads], f"{here}.{part}.4d")],
                f"{here}.{part}.heads",
                perm=order,
            )

        query, key, value = split("query", [0, 2, 1, 3]), split("key", [0, 2, 3, 1]), split("value", [0, 2, 1, 3])
        product = self.add("MatMul", [query, key], f"{here}.product")
        scale = self.constant("scale", np.array(float(np.sqrt(HIDDEN // HEADS)), np.float32))
        scores = self.add("Add", [self.add("Div", [product, scale], f"{here}.scaled"), bias], f"{here}.scores")
        shares = self.add("Softmax", [scores], f"{here}.shares", axis=-1)
        mixed = self.add(
            "Transpose", [self.add("MatMul", [shares, value], f"{here}.mixed")], f"{here}.mixed.t", perm=[0, 2, 1, 3]
        )
        joined = self.add(
            "Reshape", [mixed, self.constant("joined", np.array([0, 0, HIDDEN], np.int64))], f"{here}.joined"
        )
        attended = self.dense(joined, f"{source}.attention.output.dense", f"{here}.attended")
        first = self.add("Add", [attended, x], f"{here}.residual1")
        x = self.norm(first, f"{source}.attention.output.LayerNorm", f"{here}.norm1")

        inner = self.dense(x, f"{source}.intermediate.dense", f"{here}.inner")
        # GELU by erf, written the way that onnxruntime recognises and fuses.
        half = self.add("Div", [inner, self.constant("sqrt2", np.array(np.sqrt(2.0), np.float32))], f"{here}.gelu.div")
        erf = self.add("Add", [self.add("Erf", [half], f"{here}.gelu.erf"), "float_one"], f"{here}.gelu.add")
        gelu = self.add(
            "Mul",
            [self.add("Mul", [inner, erf], f"{here}.gelu.mul"), self.constant("half", np.array(0.5, np.float32))],
            f"{here}.gelu",
        )
        outer = self.dense(gelu, f"{source}.output.dense", f"{here}.outer")
        second = self.add("Add", [outer, x], f"{here}.residual2")
        return self.norm(second, f"{source}.output.LayerNorm", f"{here}.norm2")

    def model(self) -> onnx.ModelProto:
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])
            for name in ("input_ids", "attention_mask", "token_type_ids")
        ]
        output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "length", HIDDEN])
        graph = helper.make_graph(self._nodes, "all-MiniLM-L6-v2", inputs, [output], list(self._constants.values()))
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        return model
