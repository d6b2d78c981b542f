"""A model's process, or one that it has started, writes without end to what the server reads of it.

The log of the operator may grow. The requests of the model are answered, and it can be unloaded.
"""

import os
from pathlib import Path

import pytest

from repoagent.errors import InternalError
from repoagent.serving.requests.request import InferResponse
from tests.hostile.conftest import NewCore
from tests.hostile.fake_child import request, write_child

MODEL = """
def write(fd):
    while True:
        os.write(fd, b"\\n" * 65536)  # Lines take longer to read than to write.
def send():
    while True:
        packet(SIDE, 14, None)
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


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("flood", FLOODS)
def test_requests_are_answered_a_process_that_ends_is_replaced_and_the_model_can_be_unloaded(
    new_core: NewCore, repository: Path, flood: str
) -> None:
    write_child(repository, MODEL.replace("FLOOD", FLOODS[flood]))
    core = new_core()
    core.load("m")
    first = pid(core.infer(request(2.0)))
    with pytest.raises(InternalError, match="is not healthy"):
        core.infer(request(1.0))
    second = pid(core.infer(request(3.0)))
    assert second not in (first, os.getpid())
    core.unload("m")
    assert not Path(f"/proc/{second}").exists()


def pid(response: InferResponse) -> int:
    return int(response.parameters["pid"])
