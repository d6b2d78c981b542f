"""What the answers of members mean further on: outputs that they leave out, sequences that they name."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from repoagent.errors import InvalidArgumentError
from repoagent.serving.core import ServingCore
from repoagent.serving.requests.request import Asked, InferRequest, InferResponse
from repoagent.serving.requests.tensor import Tensor

Maker = Callable[..., ServingCore]
Writer = Callable[..., Any]

IN = 'input { name: "%s" data_type: TYPE_FP32 dims: [1]%s }\n'
OUT = 'output { name: "%s" data_type: TYPE_FP32 dims: [1] }\n'
OPTIONAL = " optional: true"

SPLIT = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x")
            outputs = [pb_utils.Tensor("small", x.as_numpy())]
            if x.as_numpy()[0] > 10:
                outputs = [pb_utils.Tensor("large", x.as_numpy())]
            responses.append(pb_utils.InferenceResponse(output_tensors=outputs))
        return responses
"""

MEET = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            found = pb_utils.get_input_tensor_by_name(request, "large")
            y = found.as_numpy() if found is not None else np.array([-1], np.float32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]))
        return responses
"""

STEPS = """
ensemble_scheduling {
  step { model_name: "split" model_version: -1 input_map { key: "x" value: "x" }
         output_map { key: "small" value: "s" } output_map { key: "large" value: "l" } }
  step { model_name: "meet" model_version: -1 input_map { key: "small" value: "s" }
         input_map { key: "large" value: "l" } output_map { key: "y" value: "y" } }
}
"""


def ask(core: ServingCore, value: float, **fields: Any) -> InferResponse:
    return core.infer(InferRequest(Asked("e", {"x": Tensor.of(np.array([value], np.float32))}, **fields)))


def write_split(write: Writer, write_ensemble: Writer, *, optional: bool) -> None:
    write("split", IN % ("x", "") + OUT % "small" + OUT % "large", SPLIT)
    mark = OPTIONAL if optional else ""
    write("meet", IN % ("small", mark) + IN % ("large", mark) + OUT % "y", MEET)
    write_ensemble("e", IN % ("x", "") + OUT % "s" + OUT % "l" + OUT % "y" + STEPS)


@pytest.mark.slow
def test_an_output_that_a_member_leaves_out_is_left_out_of_an_optional_input_and_of_the_answer(
    new_core: Maker, write_anywhere: Writer, write_ensemble: Writer
) -> None:
    write_split(write_anywhere, write_ensemble, optional=True)
    core = new_core()
    core.load("e")
    few, many = ask(core, 1), ask(core, 11)
    assert {name: float(tensor.array[0]) for name, tensor in few.outputs.items()} == {"s": 1, "y": -1}
    assert {name: float(tensor.array[0]) for name, tensor in many.outputs.items()} == {"l": 11, "y": 11}


def test_an_output_that_a_member_leaves_out_is_missed_by_a_step_that_needs_it(
    new_core: Maker, write_member: Writer, write_ensemble: Writer
) -> None:
    write_split(write_member, write_ensemble, optional=False)
    core = new_core()
    core.load("e")
    with pytest.raises(InvalidArgumentError, match=r"in ensemble 'e', .*missing required input\(s\) \['large'\]"):
        ask(core, 1)


STREAM = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            sender.send(pb_utils.InferenceResponse([]))
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", np.ones(1, np.float32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

ONE_STEP = """
ensemble_scheduling {
  step { model_name: "m" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } }
}
"""


@pytest.mark.slow
def test_a_response_of_a_stream_without_tensors_is_a_response_of_the_ensemble(
    new_core: Maker, write_anywhere: Writer, write_ensemble: Writer, new_sender: Any
) -> None:
    tensors = IN % ("x", "") + OUT % "y"
    write_anywhere("m", tensors + "model_transaction_policy { decoupled: true }", STREAM)
    write_ensemble("e", tensors + ONE_STEP)
    core = new_core()
    core.load("e")
    sender = new_sender()
    core.submit(InferRequest(Asked("e", {"x": Tensor.of(np.zeros(1, np.float32))}), sender))
    sent = [sender.sent.get(timeout=60) for _ in range(3)]
    assert [list(response.outputs) if response else None for response, _ in sent] == [[], ["y"], None]
    assert [final for _, final in sent] == [False, False, True]


MARKS = """
import json

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            y = np.array([request.flags()], np.float32)
            given = json.loads(request.parameters()).get(request.model_name(), "{}")
            parameters = json.loads(given)
            parameters["seen"] = str(request.correlation_id())
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y)], parameters=parameters))
        return responses
"""

TWO_STEPS = """
ensemble_scheduling {
  step { model_name: "a" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "t" } }
  step { model_name: "b" model_version: -1 input_map { key: "x" value: "t" } output_map { key: "y" value: "y" } }
}
"""


@pytest.fixture
def marks(new_core: Maker, write_member: Writer, write_ensemble: Writer) -> ServingCore:
    """Two models, of which each puts what the request's parameter of its name has into its response's parameters."""
    for name in "ab":
        write_member(name, IN % ("x", "") + OUT % "y", MARKS)
    write_ensemble("e", IN % ("x", "") + OUT % "y" + TWO_STEPS)
    core = new_core()
    core.load("e")
    return core


def test_answers_of_an_ensemble_say_which_sequence_they_belong_to(marks: ServingCore) -> None:
    assert ask(marks, 1).parameters == {"sequence_id": 0, "sequence_start": False, "sequence_end": False}
    response = ask(marks, 1, correlation_id=7, sequence_start=True)
    assert response.parameters == {"sequence_id": 7, "sequence_start": True, "sequence_end": False}
    assert ask(marks, 1, correlation_id="s", sequence_end=True).parameters == {
        "sequence_id": "s",
        "sequence_start": False,
        "sequence_end": True,
    }
    assert ask(marks, 1, correlation_id=2**64 - 1).parameters["sequence_id"] == -1


def test_a_member_may_say_which_sequence_the_next_steps_belong_to(marks: ServingCore) -> None:
    response = ask(marks, 1, correlation_id=7, parameters={"a": '{"sequence_id": 9, "sequence_end": true}'})
    assert float(response.outputs["y"].array[0]) == 2, "the second step had the flag END"
    assert response.parameters == {"sequence_id": 9, "sequence_start": False, "sequence_end": True}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ('{"sequence_id": true}', "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or"),
        ('{"sequence_start": 1}', "expect parameter 'sequence_start' to be TRITONSERVER_PARAMETER_BOOL"),
        ('{"sequence_end": "no"}', "expect parameter 'sequence_end' to be TRITONSERVER_PARAMETER_BOOL"),
    ],
)
def test_sequence_parameters_of_a_wrong_type_fail_the_request(marks: ServingCore, given: str, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="in ensemble 'e', " + text):
        ask(marks, 1, parameters={"b": given})
