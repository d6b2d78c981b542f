"""What a model's process keeps of the requests that it has answered."""

from pathlib import Path

import numpy as np
import pytest

from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.senders import submit_and_wait
from repoagent.serving.requests.tensor import Tensor

CONFIG = """
backend: "python" parameters {{ key: "EXECUTION" value {{ string_value: "process" }} }}
model_transaction_policy {{ decoupled: {decoupled} }}
input {{ name: "x" data_type: TYPE_FP32 dims: [-1] }} output {{ name: "y" data_type: TYPE_INT64 dims: [1] }}
"""
# Answers how many requests are in memory, which no collector cleans up.
MODEL = """
import gc
import numpy as np
import triton_python_backend_utils as pb_utils
from repoagent.serving.backends.python.process.remote import RemoteRequest
gc.disable()
class TritonPythonModel:
    def execute(self, requests):
        alive = sum(type(entry) is RemoteRequest for entry in gc.get_objects())
        answer = pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([alive]))])
        if {decoupled}:
            requests[0].get_response_sender().send(answer, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return None
        return [answer]
"""


@pytest.mark.parametrize("decoupled", [False, True])
def test_an_answered_request_leaves_the_process_without_its_garbage_collector(tmp_path: Path, decoupled: bool) -> None:
    directory = tmp_path / "m" / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(MODEL.format(decoupled=decoupled))
    (directory.parent / "config.pbtxt").write_text(CONFIG.format(decoupled=str(decoupled).lower()))
    options = CoreOptions(repositories=(str(tmp_path),), control_mode=ControlMode.NONE, repoagent_directory=None)
    with ServingCore(options) as core:
        x = Tensor.of(np.zeros(10_000, np.float32))
        answers = [submit_and_wait(core.submit, InferRequest(Asked("m", {"x": x})), "m") for _ in range(5)]
    assert [answer.outputs["y"].array.item() for answer in answers] == [1] * 5
