"""A model's process, or one that it has started, writes without end to what the server reads of it.

The log of the operator may grow. The requests of the model are answered, and it can be unloaded.
"""

import os
from pathlib import Path

import numpy as np
import pytest

from repoagent.errors import InternalError
from repoagent.serving.requests.request import Asked, InferRequest, InferResponse
from repoagent.serving.requests.tensor import Tensor
from tests.hostile.conftest import NewCore

CONFIG = """
backend: "python" parameters { key: "EXECUTION" value { string_value: "process" } }
input { name: "x" data_type: TYPE_FP32 dims: [-1] } output { name: "y" data_type: TYPE_FP32 dims: [-1] }
"""
MODEL = """
import itertools, os, socket, struct, subprocess, sys, threading
import triton_python_backend_utils as pb_utils
SIDE = int(sys.orig_argv[5])
def write(fd):
    while True:
        os.write(fd, b"\\n" * 65536)  # Lines take longer to read than to write.
def send():
    side = socket.socket(fileno=os.dup(SIDE))
    text = b"[null,null,[],[],[]]"
    while True:
        side.send(struct.pack("<BBI", 14, 0, len(text)) + text)
class TritonPythonModel:
    def initialize(self, args):
        FLOOD
    def execute(self, requests):
        x = pb_utils.get_input_tensor_by_name(requests[0], "x").as_numpy()
        if x[0] == 1:
            os.abort()
        pb_utils.Logger.log_info("hello")  # The answer waits until this has been heard.
        parameters = {"pid": os.getpid()}
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x)], parameters=parameters) for _ in requests]
"""
FLOODS = {
    "its own standard output": "threading.Thread(target=write, args=(1,), daemon=True).start()",
    "its own standard error": "threading.Thread(target=write, args=(2,), daemon=True).start()",
    "messages": "threading.Thread(target=send, daemon=True).start()",
    "a process of its own": "subprocess.Popen(['yes'])",
    "a process that it has let go of": "subprocess.Popen(['yes'], start_new_session=True)",
}


def ask(value: float) -> InferRequest:
    return InferRequest(Asked("m", {"x": Tensor.of(np.array([value], np.float32))}))


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("flood", FLOODS)
def test_requests_are_answered_a_process_that_ends_is_replaced_and_the_model_can_be_unloaded(
    new_core: NewCore, repository: Path, flood: str
) -> None:
    directory = repository / "m" / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(MODEL.replace("FLOOD", FLOODS[flood]))
    (directory.parent / "config.pbtxt").write_text(CONFIG)
    core = new_core()
    core.load("m")
    first = pid(core.infer(ask(2.0)))
    with pytest.raises(InternalError, match="is not healthy"):
        core.infer(ask(1.0))
    second = pid(core.infer(ask(3.0)))
    assert second not in (first, os.getpid())
    core.unload("m")
    assert not Path(f"/proc/{second}").exists()


def pid(response: InferResponse) -> int:
    return int(response.parameters["pid"])
