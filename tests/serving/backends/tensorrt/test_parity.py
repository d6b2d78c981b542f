"""Every model of the test set gives the same numbers over the stand-in as through ONNX Runtime's backend.

``tests/engines/interfaces`` runs these over the module that calls CUDA and TensorRT as well.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from repoagent.engines.protocol import Profile, ShapeRange
from repoagent.serving.requests.tensor import Tensor
from tests.engines.models import add_sub, make, matmul, nonzero, twice
from tests.serving.backends.tensorrt.kit import plan, runner, through_onnxruntime

ROOT: Final = Path(__file__).parents[4]
SIZES: Final = (1, 3, 8, 8, 2)
TYPES: Final = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}


def _two_branches() -> bytes:
    """Two outputs of different ranks and types."""
    nodes = [
        helper.make_node("Softmax", ["x"], ["p"], axis=-1),
        helper.make_node("ArgMax", ["p"], ["best"], axis=-1, keepdims=0),
    ]
    shape = ("n", 7)
    outputs = [("p", TensorProto.FLOAT, shape), ("best", TensorProto.INT64, ("n",))]
    return make(nodes, [("x", TensorProto.FLOAT, shape)], outputs)


def _two_lengths() -> bytes:
    """Two dimensions that vary."""
    nodes = [helper.make_node("Transpose", ["x"], ["y"], perm=[0, 2, 1])]
    inputs = [("x", TensorProto.FLOAT, ("n", "length", 3))]
    return make(nodes, inputs, [("y", TensorProto.FLOAT, ("n", 3, "length"))])


MODELS: Final = {
    "add_sub": add_sub(),
    "matmul": matmul(),
    "wide": matmul(300),
    "nonzero": nonzero(),
    "twice": twice(),
    "branches": _two_branches(),
    "lengths": _two_lengths(),
    **{
        path.stem: path.read_bytes()
        for path in sorted(ROOT.glob("examples/**/*.onnx"))
        if ".venv" not in path.parts and path.stat().st_size < 1 << 22
    },
}


def _array(node: Any, size: int, rng: Any) -> Any:
    shape = [one if isinstance(one, int) else size for one in node.shape]
    kind = TYPES[node.type]
    if kind is np.bool_:
        return rng.random(shape) < 0.5
    values = rng.standard_normal(shape) * 3
    return values.astype(kind)


@pytest.mark.parametrize("name", MODELS)
def test_the_same_numbers_as_through_onnx_runtime(name: str) -> None:
    model = MODELS[name]
    nodes = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).get_inputs()

    def sizes(of: int) -> dict[str, tuple[int, ...]]:
        return {one.name: tuple(size if isinstance(size, int) else of for size in one.shape) for one in nodes}

    least, most = sizes(1), sizes(8)
    profile = Profile({key: ShapeRange(least[key], most[key], most[key]) for key in least})
    ours, theirs = runner(plan(model, profile)), through_onnxruntime(model)
    rng = np.random.default_rng(len(name))
    for size in SIZES:
        inputs = {one.name: Tensor.of(_array(one, size, rng)) for one in nodes}
        mine, other = ours.run(inputs, ()), theirs.run(inputs, ())
        assert set(mine) == set(other)
        for output, tensor in other.items():
            assert mine[output].data_type is tensor.data_type
            np.testing.assert_array_equal(mine[output].array, tensor.array)
