"""A process answers several requests at once, and one of the answers cannot be sent: the others are."""

import threading
from pathlib import Path

import numpy as np
import pytest

from repoagent.errors import RepoAgentError
from repoagent.limits import Limits
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor
from tests.hostile.conftest import NewCore

COUNT = 4
CONFIG = f"""
backend: "python" parameters {{ key: "EXECUTION" value {{ string_value: "process" }} }}
max_batch_size: {COUNT}
dynamic_batching {{ preferred_batch_size: [{COUNT}] max_queue_delay_microseconds: 600000000 }}
input {{ name: "x" data_type: TYPE_FP32 dims: [1] }} output {{ name: "y" data_type: TYPE_FP32 dims: [-1] }}
"""
MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils
BAD = {
    "text": lambda: dict(parameters={"p": "a" * 2_000_000}),
    "memory": lambda: dict(size=20 << 20),
}
def answer(size=1, **more):
    return pb_utils.InferenceResponse([pb_utils.Tensor("y", np.zeros((1, size), np.float32))], **more)
class TritonPythonModel:
    def execute(self, requests):
        marks = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy()[0, 0] for request in requests]
        return [answer(**(BAD["KIND"]() if mark == 1 else {})) for mark in marks]
"""


@pytest.mark.parametrize("kind", ["text", "memory"])
def test_the_answer_that_cannot_be_sent_fails_alone(new_core: NewCore, repository: Path, kind: str) -> None:
    directory = repository / "m" / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(MODEL.replace("KIND", kind))
    (directory.parent / "config.pbtxt").write_text(CONFIG)
    core = new_core(limits=Limits(python_message_bytes=1_000_000, python_shared_bytes=64 << 20))
    core.load("m")
    found: dict[int, str] = {}

    def ask(number: int) -> None:
        x = Tensor.of(np.array([[number]], np.float32))
        try:
            core.infer(InferRequest(Asked("m", {"x": x})))
            found[number] = ""
        except RepoAgentError as error:
            found[number] = str(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(COUNT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(found) == list(range(COUNT))
    assert "cannot be handed over" in found.pop(1)
    assert set(found.values()) == {""}
