"""Ragged batches: requests of different shapes in one execution, and what the model is told of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from repoagent.config import read_text
from repoagent.errors import InternalError, RepoAgentError
from repoagent.serving.core import ServingCore
from repoagent.serving.instances.batches import RaggedJoiner
from repoagent.serving.requests.request import DISCARD, Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor
from tests.onnx_models import model_bytes

CoreMaker = Callable[..., ServingCore]

BASE = """
    backend: "onnxruntime" max_batch_size: 8 instance_group { kind: KIND_CPU }
    dynamic_batching { max_queue_delay_microseconds: 60000000 preferred_batch_size: 3 }
    input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }
"""
BOUNDS = """
    batch_input {
      kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO target_name: "bounds" data_type: TYPE_INT32 source_input: "x"
    }
    output { name: "sum" data_type: TYPE_FP32 dims: [ 1 ] }
"""
TWICE = """
    output { name: "twice" data_type: TYPE_FP32 dims: [ -1 ] }
    batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "twice" source_input: "x" }
"""


def onnx_model() -> bytes:
    """``sum``: of the elements of each request, found with ``bounds``. ``twice``: every element, in one row."""
    constants = {"zero": ([0.0], np.float32), "axis": (0, np.int64), "one": ([1], np.int64), "first": ([0], np.int64)}
    constants |= {"last": ([-1], np.int64), "end": ([2**31], np.int64)}
    nodes = [
        helper.make_node("CumSum", ["x", "axis"], ["c"]),
        helper.make_node("Concat", ["zero", "c"], ["c0"], axis=0),
        helper.make_node("Gather", ["c0", "bounds"], ["g"]),
        helper.make_node("Slice", ["g", "one", "end"], ["upper"]),
        helper.make_node("Slice", ["g", "first", "last"], ["lower"]),
        helper.make_node("Sub", ["upper", "lower"], ["flat"]),
        helper.make_node("Unsqueeze", ["flat", "one"], ["sum"]),
        helper.make_node("Add", ["x", "x"], ["twice"]),
    ]
    inputs: list[Any] = [("x", TensorProto.FLOAT, ["E"]), ("bounds", TensorProto.INT32, ["B"])]
    outputs: list[Any] = [("sum", TensorProto.FLOAT, ["N", 1]), ("twice", TensorProto.FLOAT, ["E"])]
    tensors = [onnx.numpy_helper.from_array(np.array(value, kind), name) for name, (value, kind) in constants.items()]
    return model_bytes(nodes, inputs, outputs, tensors)


@pytest.fixture
def serve(new_core: CoreMaker, repository: Path) -> Callable[[str], ServingCore]:
    def serve(config: str) -> ServingCore:
        (repository / "m" / "1").mkdir(parents=True)
        (repository / "m" / "1" / "model.onnx").write_bytes(onnx_model())
        (repository / "m" / "config.pbtxt").write_text(config)
        core = new_core()
        core.load("m")
        return core

    return serve


def request(values: Any, sender: Any = DISCARD, **fields: Any) -> InferRequest:
    return InferRequest(Asked("m", {"x": Tensor.of(np.asarray(values, np.float32))}, **fields), sender)


def test_requests_of_different_shapes_are_one_execution_and_get_their_own_parts(
    serve: Callable[[str], ServingCore], new_sender: Any
) -> None:
    core = serve(BASE + BOUNDS + TWICE)
    senders = [new_sender() for _ in range(3)]
    wanted: list[tuple[str, ...]] = [(), ("sum",), ("twice",)]
    for sender, names, values in zip(senders, wanted, ([[1, 2, 3]], [[4, 5, 6, 7]], [[8, 9]]), strict=True):
        core.submit(request(values, sender=sender, requested_outputs=names))
    responses = [sender.final() for sender in senders]
    found = [{name: tensor.array.tolist() for name, tensor in response.outputs.items()} for response in responses]
    assert found == [{"sum": [[6]], "twice": [[2, 4, 6]]}, {"sum": [[22]]}, {"twice": [[16, 18]]}]
    entry = core.statistics("m")["model_stats"][0]
    assert (entry["execution_count"], entry["inference_count"]) == (1, 3)


def test_a_single_request_is_a_batch_too(serve: Callable[[str], ServingCore]) -> None:
    core = serve((BASE + BOUNDS + TWICE).replace("max_queue_delay_microseconds: 60000000 preferred_batch_size: 3", ""))
    outputs = core.infer(request([[1, 2, 3]])).outputs
    assert {name: tensor.array.tolist() for name, tensor in outputs.items()} == {"sum": [[6]], "twice": [[2, 4, 6]]}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("BATCH_ELEMENT_COUNT", [3, 8, 2]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", [3, 11, 13]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [0, 3, 11, 13]),
        ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", [0] * 8),
        ("BATCH_ITEM_SHAPE", [[1, 3], [2, 2], [2, 2], [2, 1]]),
        ("BATCH_ITEM_SHAPE_FLATTEN", [1, 3, 2, 2, 2, 2, 2, 1]),
    ],
)
def test_what_the_model_is_told_of_the_batch(kind: str, expected: list[Any]) -> None:
    config = read_text(
        f"""max_batch_size: 8 input {{ name: "x" data_type: TYPE_FP32 dims: [ -1, -1 ] allow_ragged_batch: true }}
        batch_input {{ kind: {kind} target_name: "told" data_type: TYPE_FP32 source_input: "x" }}"""
    )
    shapes = [(1, 1, 3), (2, 2, 2), (1, 2, 1)]
    requests = [request(np.arange(np.prod(shape)).reshape(shape)) for shape in shapes]
    joined = RaggedJoiner(config).join(requests)
    assert joined["told"].array.tolist() == expected
    assert joined["told"].array.dtype == np.float32
    assert joined["x"].array.tolist() == [*range(3), *range(8), *range(2)]


def test_inputs_that_are_not_ragged_are_joined_as_ever() -> None:
    config = read_text(
        """max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }
        input { name: "e" data_type: TYPE_FP32 dims: [ 2 ] }"""
    )
    requests = [request([[1.0]]), request([[2.0, 3.0]])]
    for number, each in enumerate(requests):
        each.inputs = {**each.inputs, "e": Tensor.of(np.full((1, 2), number, np.float32))}
    joined = RaggedJoiner(config).join(requests)
    assert {name: tensor.array.tolist() for name, tensor in joined.items()} == {"x": [1, 2, 3], "e": [[0, 0], [1, 1]]}


def test_an_output_that_cannot_be_cut_is_an_error() -> None:
    config = read_text(f"max_batch_size: 8 {BASE.partition('KIND_CPU }')[2]} {TWICE}")
    joiner = RaggedJoiner(config)
    requests = [request([[1, 2]]), request([[3]])]
    with pytest.raises(InternalError, match=r"output 'twice' has 4 elements, but the inputs .* have 3"):
        joiner.split({"twice": Tensor.of(np.zeros(4, np.float32))}, requests, [1, 1])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            ("TYPE_INT32", "TYPE_FP32"),
            "configuration expects datatype TYPE_FP32 for input 'bounds', model provides TYPE_INT32",
        ),
        (('target_name: "bounds"', 'target_name: "other"'), "unexpected inference input 'other'"),
    ],
)
def test_what_the_model_does_not_have_is_refused(
    serve: Callable[[str], ServingCore], change: tuple[str, str], text: str
) -> None:
    with pytest.raises(RepoAgentError) as caught:
        serve((BASE + BOUNDS + TWICE).replace(*change))
    assert text in str(caught.value)


PYTHON = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        together = len(requests)
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x * together)]))
        return answers
"""


@pytest.mark.parametrize("ragged", [True, False])
def test_a_python_model_gets_the_requests_of_a_ragged_batch_one_by_one(
    new_core: CoreMaker, repository: Path, new_sender: Any, ragged: bool
) -> None:
    (repository / "m" / "1").mkdir(parents=True)
    (repository / "m" / "1" / "model.py").write_text(PYTHON)
    config = BASE.replace("onnxruntime", "python") + 'output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }'
    if not ragged:
        config = config.replace("allow_ragged_batch: true", "").replace("60000000", "0")
    (repository / "m" / "config.pbtxt").write_text(config)
    core = new_core()
    core.load("m")
    senders = [new_sender() for _ in range(3)]
    for length, sender in enumerate(senders, 1):
        core.submit(request([[1] * length], sender=sender))
    found = [sender.final().outputs["y"].array.tolist() for sender in senders]
    assert found == [[[3 if ragged else 1] * length] for length in (1, 2, 3)]


def test_what_follows_from_a_batch_means_nothing_to_a_python_model(new_core: CoreMaker, repository: Path) -> None:
    (repository / "m" / "1").mkdir(parents=True)
    (repository / "m" / "1" / "model.py").write_text(PYTHON)
    (repository / "m" / "config.pbtxt").write_text((BASE + BOUNDS).replace("onnxruntime", "python"))
    with pytest.raises(RepoAgentError, match="batch_input or batch_output, which mean nothing to backend 'python'"):
        new_core().load("m")
