"""Small ONNX models for tests of engines, of types that TensorRT has."""

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

from tests.onnx_models import Tensors, make_model


def make(nodes: Sequence[Any], inputs: Tensors, outputs: Tensors, weights: Sequence[Any] = ()) -> bytes:
    """A model of the opset and the version that both runtimes read."""
    model = make_model(nodes, inputs, outputs, weights, opset=24, ir_version=11)
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


def twice(kind: int = TensorProto.FLOAT, shape: Sequence[Any] = ("n", 4)) -> bytes:
    """y = x + x"""
    return make([helper.make_node("Add", ["x", "x"], ["y"])], [("x", kind, shape)], [("y", kind, shape)])


def add_sub() -> bytes:
    """Two inputs, their sum and their difference; a batch of any size."""
    nodes = [helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Sub", ["a", "b"], ["difference"])]
    shape = ("n", 3)
    inputs: Tensors = [("a", TensorProto.FLOAT, shape), ("b", TensorProto.FLOAT, shape)]
    return make(nodes, inputs, [("sum", TensorProto.FLOAT, shape), ("difference", TensorProto.FLOAT, shape)])


def matmul(width: int = 4) -> bytes:
    """y = relu(x w), w = 0, 1, 2, ..."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    weights = [helper.make_tensor("w", TensorProto.FLOAT, [width, 3], [float(n) for n in range(width * 3)])]
    inputs: Tensors = [("x", TensorProto.FLOAT, ("n", width))]
    return make(nodes, inputs, [("y", TensorProto.FLOAT, ("n", 3))], weights)


def nonzero() -> bytes:
    """How many rows its output has, only the values tell."""
    nodes = [helper.make_node("NonZero", ["x"], ["t"]), helper.make_node("Transpose", ["t"], ["y"], perm=[1, 0])]
    return make(nodes, [("x", TensorProto.FLOAT, ["n", 4])], [("y", TensorProto.INT64, ["found", 2])])


def reshape() -> bytes:
    """The second input is a shape, read on the host."""
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    inputs: Tensors = [("x", TensorProto.FLOAT, ["n"]), ("shape", TensorProto.INT64, [2])]
    return make(nodes, inputs, [("y", TensorProto.FLOAT, ["rows", "columns"])])
