"""Outputs that ONNX Runtime makes in memory of the caller's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from repoagent.config import normalize, read_text
from repoagent.errors import InvalidArgumentError
from repoagent.serving.backends.onnxruntime.backend import OnnxRuntimeBackend
from repoagent.serving.instances.backend import BatchRunner, Capability, InstanceSpec
from repoagent.serving.requests.tensor import Tensor
from tests.onnx_models import floats, model_bytes

WIDTH = 1 << 15


class Place:
    """Room of ``byte_size`` bytes, ``shift`` bytes from an aligned address."""

    def __init__(self, byte_size: int, shift: int = 0) -> None:
        self.byte_size = byte_size
        self.array = np.zeros(byte_size + 128, np.uint8)
        self._start = -self.array.ctypes.data % 64 + shift

    def room(self, byte_size: int) -> memoryview | None:
        view = self.array.data[self._start : self._start + self.byte_size]
        return view[:byte_size] if byte_size <= self.byte_size else None

    def holds(self, array: Any) -> bool:
        return np.shares_memory(array, self.array)


class Gone(Place):
    def room(self, byte_size: int) -> memoryview | None:
        raise InvalidArgumentError("gone")


@pytest.fixture
def runner(memory_files: Any) -> Callable[..., Any]:
    """An instance of a model with x [batch, WIDTH] and outputs y = -x, sum = the rows' sums, of these declared dims."""

    def make(dims: tuple[Any, ...] = ("batch", WIDTH), batching: bool = True) -> BatchRunner:
        nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("ReduceSum", ["x", "axis"], ["sum"])]
        outputs = [*floats("y", shape=dims), *floats("sum", shape=("batch", 1))]
        axis = helper.make_tensor("axis", TensorProto.INT64, [1], [1])
        content = model_bytes(nodes, floats("x", shape=("batch", "width")), outputs, [axis])
        text = 'backend: "onnxruntime" ' + ("max_batch_size: 8" if batching else "")
        backend, files = OnnxRuntimeBackend(), memory_files({"1/model.onnx": content})
        config = normalize(read_text(text), model_name="m")
        backend.auto_complete(config, files, 1)
        made = backend.load(config, files, 1).create_instance(InstanceSpec("m_0", "CPU"))
        assert isinstance(made, BatchRunner)
        assert Capability.PLACES_OUTPUTS in made.capabilities
        return made

    return make


def _input(rows: int, width: int = WIDTH) -> dict[str, Tensor]:
    array = np.arange(rows * width, dtype=np.float32).reshape(rows, width)
    array.flags.writeable = False
    return {"x": Tensor.of(array)}


def _check(outputs: dict[str, Tensor], inputs: dict[str, Tensor]) -> None:
    assert np.array_equal(outputs["y"].array, -inputs["x"].array)
    if "sum" in outputs:
        np.testing.assert_allclose(outputs["sum"].array, inputs["x"].array.sum(1, keepdims=True), rtol=1e-4)


@pytest.mark.parametrize("outputs", [(), ("y",), ("sum", "y")])
@pytest.mark.parametrize("room", [0, 1000])
def test_a_large_output_is_made_in_its_place(runner: Any, outputs: tuple[str, ...], room: int) -> None:
    inputs, place, small = _input(3), Place(3 * WIDTH * 4 + room), Place(64)
    found = runner().run_into(inputs, outputs, {"y": place, "sum": small})
    _check(found, inputs)
    assert set(found) == set(outputs or ("y", "sum"))
    assert place.holds(found["y"].array)
    assert "sum" not in found or not small.holds(found["sum"].array)


@pytest.mark.parametrize(
    ("place", "dims", "batching", "rows"),
    [
        (Place(3 * WIDTH * 4 - 1), ("batch", WIDTH), True, 3),
        (Place(3 * WIDTH * 4, shift=4), ("batch", WIDTH), True, 3),
        (Place(3 * WIDTH * 4), ("batch", "width"), True, 3),
        (Place(WIDTH * 4 * 4), (4, WIDTH), False, 3),
    ],
    ids=["too-small", "unaligned", "variable", "declared-wrongly"],
)
def test_what_cannot_be_placed_is_made_elsewhere(
    runner: Any, place: Place, dims: tuple[Any, ...], batching: bool, rows: int
) -> None:
    inputs = _input(rows)
    found = runner(dims, batching).run_into(inputs, ("y",), {"y": place})
    _check(found, inputs)
    assert not place.holds(found["y"].array)


def test_a_place_that_is_gone_is_an_error(runner: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="gone"):
        runner().run_into(_input(3), ("y",), {"y": Gone(3 * WIDTH * 4)})


def test_a_fault_of_the_request_is_the_same_error_as_ever(runner: Any) -> None:
    made = runner()
    wrong = {"x": Tensor.of(np.zeros((3, WIDTH), np.int32))}
    messages = []
    for places in ({}, {"y": Place(3 * WIDTH * 4)}):
        with pytest.raises(Exception, match=r".") as raised:
            made.run_into(wrong, ("y",), places)
        messages.append((type(raised.value), str(raised.value)))
    assert messages[0] == messages[1]
