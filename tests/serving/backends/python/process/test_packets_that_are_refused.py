"""A packet that the kernel refuses although the process is there: its batch fails, and the process goes on."""

import socket
from typing import Any

import numpy as np
import pytest

ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", requests[0].inputs()[0].as_numpy())])]
"""


@pytest.mark.timeout(60)
def test_inputs_that_are_more_than_a_socket_takes_are_an_error_of_their_batch(run_in_process_of_its_own: Any) -> None:
    model = run_in_process_of_its_own(ECHO)
    child = model.instance.supervisor.child
    channel = child.work
    channel._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # The kernel makes some kilobytes of it.
    text = model.error(np.zeros(3000))
    assert text == "the inputs of 'm_0_0' cannot be handed over: [Errno 90] Message too long"
    assert model.value(np.zeros(10)).shape == (10,)
    assert model.instance.supervisor.child is child
