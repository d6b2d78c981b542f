"""Small ONNX models."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper


@pytest.fixture
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
    graph = helper.make_graph(
        nodes,
        "perceptron",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def convolution() -> "onnx.ModelProto":
    """Conv, BatchNormalization and Relu over x[n,3,16,16]: the batch norm can be folded into the convolution."""
    rng = np.random.default_rng(8)
    shapes = {"W": (16, 3, 3, 3), "scale": (16,), "bias": (16,), "mean": (16,), "var": (16,)}
    weights = [numpy_helper.from_array(rng.random(shape, "float32") + 0.1, name) for name, shape in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["x", "W"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["a", "scale", "bias", "mean", "var"], ["b"]),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "convolution",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 16, 16, 16])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Save a model below ``tmp_path/source``, with its weights in the file ``data`` if that is given."""

    def call(model: "onnx.ModelProto", path: str = "1/model.onnx", data: str | None = None) -> Path:
        target = tmp_path / "source" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        copy = onnx.ModelProto.FromString(model.SerializeToString())
        if data is None:
            onnx.save(copy, target)
        else:
            onnx.save(copy, target, save_as_external_data=True, location=data, size_threshold=0)
        return target

    return call
