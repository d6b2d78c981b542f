"""``reshape`` of Python models: clients see ``dims``, the model sees ``reshape``, as with any other backend."""

from collections.abc import Callable

import numpy as np
import pytest

from repoagent.errors import InternalError
from repoagent.serving.core import ServingCore
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor

pytestmark = pytest.mark.slow

CONFIG = """
backend: "python" max_batch_size: 2
input { name: "x" data_type: TYPE_FP32 dims: [ 6 ] reshape { shape: [ 2, 3 ] } }
output { name: "y" data_type: TYPE_FP32 dims: [ 6 ] reshape { shape: [ 3, 2 ] } }
"""
TRANSPOSE = """
class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x.transpose(0, 2, 1).copy())]) for x in inputs]
"""
TOO_MUCH = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", np.zeros(7, np.float32))]) for _ in requests]
"""


def test_the_model_sees_its_own_shapes_and_clients_see_theirs(core_of: Callable[..., ServingCore]) -> None:
    core = core_of(TRANSPOSE, CONFIG)
    asked = Asked("m", {"x": Tensor.of(np.arange(12, dtype=np.float32).reshape(2, 6))})
    for _ in range(2):  # A caller may ask the same again.
        answer = core.infer(InferRequest(asked)).outputs["y"].array
        assert answer.tolist() == [[0, 3, 1, 4, 2, 5], [6, 9, 7, 10, 8, 11]]


def test_an_output_that_does_not_fit_is_an_error(core_of: Callable[..., ServingCore]) -> None:
    core = core_of(TOO_MUCH, CONFIG)
    request = InferRequest(Asked("m", {"x": Tensor.of(np.zeros((1, 6), np.float32))}))
    with pytest.raises(InternalError, match="cannot be reshaped"):
        core.infer(request)


def test_free_slots_of_a_sequence_batch_are_reshaped_too(core_of: Callable[..., ServingCore]) -> None:
    """The slots before that of the third sequence are free: each has the same request in the batch."""
    controls = 'control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ] } }'
    config = CONFIG.replace("max_batch_size: 2", "max_batch_size: 3").replace("[ 6 ]", "[ -1, 6 ]")
    config = config.replace("[ 2, 3 ]", "[ -1, 2, 3 ]").replace("[ 3, 2 ]", "[ -1, 3, 2 ]")
    transpose = TRANSPOSE.replace("0, 2, 1", "0, 1, 3, 2")
    core = core_of(transpose, f"{config} sequence_batching {{ direct {{ }} {controls} }}")
    x = np.arange(6, dtype=np.float32).reshape(1, 1, 6)
    for sequence in (1, 2, 3):
        core.infer(InferRequest(Asked("m", {"x": Tensor.of(x)}, correlation_id=sequence, sequence_start=True)))
    answer = core.infer(InferRequest(Asked("m", {"x": Tensor.of(x)}, correlation_id=3))).outputs["y"].array
    assert answer.tolist() == [[[0, 3, 1, 4, 2, 5]]]
