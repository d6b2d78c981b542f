"""ONNX models of benchmarks."""

from collections.abc import Sequence

from onnx import NodeProto, TensorProto, helper

__all__ = ["onnx_model"]


def onnx_model(nodes: Sequence[NodeProto], constants: Sequence[TensorProto], width: int, height: int) -> bytes:
    """The bytes of a graph from ``x``, FP32[N,width], to ``y``, FP32[N,height]."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", width])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", height])]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    content: bytes = model.SerializeToString()
    return content
