"""ONNX models for the tests of every part."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Tensors = Sequence[tuple[str, int, Sequence[Any]]]
"""Name, element type and shape of each."""


def floats(*names: str, shape: Sequence[Any] = ("N", 4)) -> Tensors:
    """Tensors of FP32 of one shape."""
    return [(name, TensorProto.FLOAT, shape) for name in names]


def make_model(
    nodes: Sequence[Any],
    inputs: Tensors,
    outputs: Tensors,
    weights: Sequence[Any] = (),
    *,
    opset: int = 21,
    ir_version: int = 10,
) -> "onnx.ModelProto":
    """A model of one graph."""
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info(*tensor) for tensor in inputs],
        [helper.make_tensor_value_info(*tensor) for tensor in outputs],
        list(weights),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def model_bytes(nodes: Sequence[Any], inputs: Tensors, outputs: Tensors, weights: Sequence[Any] = ()) -> bytes:
    """The same as the content of a file."""
    content: bytes = make_model(nodes, inputs, outputs, weights).SerializeToString()
    return content


def perceptron() -> "onnx.ModelProto":
    """MatMul, Add, Relu and a needless Identity over x[n,8] -> y[n,4]: there is something to fuse and to remove."""
    rng = np.random.default_rng(7)
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype("float32"), name)
        for name, shape in (("W1", (8, 256)), ("B1", (256,)), ("W2", (256, 4)))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "W1"], ["a"]),
        helper.make_node("Add", ["a", "B1"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("Identity", ["c"], ["d"]),
        helper.make_node("MatMul", ["d", "W2"], ["y"]),
    ]
    ends = floats("x", shape=("n", 8)), floats("y", shape=("n", 4))
    return make_model(nodes, *ends, weights, opset=17, ir_version=8)


def save_model(model: "onnx.ModelProto", target: Path, data: str | None = None) -> Path:
    """Write ``model`` to ``target``, with its weights in the file ``data`` beside it if that is given."""
    target.parent.mkdir(parents=True, exist_ok=True)
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    if data is None:
        onnx.save(copy, target)
    else:
        onnx.save(copy, target, save_as_external_data=True, location=data, size_threshold=0)
    return target
