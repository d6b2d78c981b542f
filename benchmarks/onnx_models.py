"""ONNX models of benchmarks."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

# One thread: for models as small as these a second one costs more than it gives, the more so where it has to take the
# core from somebody.
CONFIG = 'backend: "onnxruntime" parameters { key: "intra_op_thread_count" value { string_value: "1" } }'
WIDTHS = {"add": 16, "wide": 512, "large": 1 << 18}
Shapes = Mapping[str, Sequence[int | str]]


def onnx_model(nodes: Sequence[NodeProto], constants: Sequence[TensorProto], width: int, height: int) -> bytes:
    """The bytes of a graph from ``x``, FP32[N,width], to ``y``, FP32[N,height]."""
    return graph_of(nodes, constants, {"x": ["N", width]}, {"y": ["N", height]})


def graph_of(nodes: Sequence[NodeProto], constants: Sequence[TensorProto], inputs: Shapes, outputs: Shapes) -> bytes:
    given, made = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
        for shapes in (inputs, outputs)
    )
    graph = helper.make_graph(nodes, "graph", given, made, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    content: bytes = model.SerializeToString()
    return content


def write_onnx(repository: Path, name: str, content: bytes, config: str | None = CONFIG) -> None:
    """A model of a repository; without a configuration if it is None."""
    file = repository / name / "1" / "model.onnx"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    if config is not None:
        (repository / name / "config.pbtxt").write_text(config)


def write_wide_models(repository: Path) -> None:
    """y = x + 1, of each of :data:`WIDTHS`."""
    for name, width in WIDTHS.items():
        one = numpy_helper.from_array(np.ones(width, np.float32), "one")
        write_onnx(repository, name, onnx_model([helper.make_node("Add", ["x", "one"], ["y"])], [one], width, width))


def write_models(repository: Path) -> dict[str, dict[str, np.ndarray]]:
    """Three models of different shapes; an input for each: multiples of 1/8, in JSON as long as those of Triton's."""
    random = np.random.default_rng(0)
    weights = [random.standard_normal(shape).astype(np.float32) for shape in ((64, 128), (128, 10))]
    constants = [numpy_helper.from_array(weight, f"w{index}") for index, weight in enumerate(weights)]
    sums = [helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Sub", ["a", "b"], ["difference"])]
    layers = [
        helper.make_node("MatMul", ["x", "w0"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w1"], ["y"]),
    ]
    relu = [helper.make_node("Relu", ["x"], ["y"])]
    wide = [1, 256]
    contents = {
        "relu_16": graph_of(relu, [], {"x": [1, 16]}, {"y": [1, 16]}),
        "sum_256": graph_of(sums, [], {"a": wide, "b": wide}, {"sum": wide, "difference": wide}),
        "mlp_64_128_10": graph_of(layers, constants, {"x": [8, 64]}, {"y": [8, 10]}),
    }
    for name, content in contents.items():
        write_onnx(repository, name, content)

    def values(*shape: int) -> np.ndarray:
        return (random.integers(-128, 128, shape) / 8).astype(np.float32)

    return {
        "relu_16": {"x": values(1, 16)},
        "sum_256": {"a": values(1, 256), "b": values(1, 256)},
        "mlp_64_128_10": {"x": values(8, 64)},
    }
