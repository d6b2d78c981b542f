"""Python models in processes of their own behind a real server: a crash, and a stop that reaches every process."""

import os
import select
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from server_stub.tests.serve.conftest import Gate, Server, World

CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: [ 1, 4 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 1, 4 ] }
output { name: "PID" data_type: TYPE_INT64 dims: [ 1 ] }
"""
MODEL = """
import os, socket, sys
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            parameters = request.parameters()
            if "crash" in parameters:
                print("the licence has run out", file=sys.stderr)
                os._exit(9)
            if "block" in parameters:
                with socket.create_connection(("127.0.0.1", PORT)) as gate:
                    gate.recv(1)
        pid = pb_utils.Tensor("PID", np.array([os.getpid()]))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy()), pid]) for r in requests]
"""


@pytest.fixture(scope="module")
def gate(world: "World") -> "Gate":
    """Where the model stands still."""
    gate = world.gate()
    directory = world.models / "own"
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "model.py").write_text(MODEL.replace("PORT", str(gate.port)))
    (directory / "config.pbtxt").write_text(CONFIG)
    return gate


@pytest.fixture
def server(world: "World", gate: "Gate") -> "Server":
    return world.serve("--load-model=own", "--load-model=plain", "--backend-config=python,execution=process")


def ask(server: "Server", **parameters: Any) -> Any:
    tensor = {"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    return server.http.post("/v2/models/own/infer", json={"inputs": [tensor], "parameters": parameters})


def pid(response: Any) -> int:
    assert response.status_code == 200, response.text
    outputs = {output["name"]: output["data"] for output in response.json()["outputs"]}
    assert outputs["Y"] == [1, 2, 3, 4]
    return int(outputs["PID"][0])


def test_a_crash_is_an_error_of_one_request_and_a_line_in_the_log(server: "Server") -> None:
    first = pid(ask(server))
    assert first != server.process.pid
    crashed = ask(server, crash=True)
    assert crashed.status_code == 500
    assert crashed.json()["error"] == (
        "Failed to process the request(s) for model instance 'own_0', message: Stub process 'own_0' is not healthy."
    )
    assert pid(ask(server)) not in (first, server.process.pid)
    assert server.answer("plain") == [1, -2, 3, -4]
    last_words = "model 'own', process of 'own_0', stderr: the licence has run out"
    server.until(lambda: last_words in server.log, "what the process wrote")  # another thread reads it
    assert "Stub process 'own_0' is unhealthy and it will be restarted: it ended with exit status 9" in server.log


def test_a_signal_to_every_process_lets_requests_finish(
    server: "Server", gate: "Gate", in_background: Callable[[Callable[[], Any]], Callable[[], Any]]
) -> None:
    """As an init system stops a service, and a terminal a program."""
    child = pid(ask(server))
    pidfd = os.pidfd_open(child)
    answer = in_background(lambda: ask(server, block=True))
    gate.reached()
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(child, number)
    server.process.send_signal(signal.SIGTERM)
    gate.open()
    assert pid(answer()) == child
    assert server.ended() == 0
    assert select.select([pidfd], [], [], 60)[0]
    os.close(pidfd)
