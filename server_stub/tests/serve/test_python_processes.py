"""Python models in processes of their own behind a real server: a crash, and a stop that reaches every process."""

import contextlib
import json
import os
import select
import signal
import time
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


# Starts processes in each way that there is, and names them in a file.
STARTING = """
import json, multiprocessing, os, subprocess, sys, time

class TritonPythonModel:
    def initialize(self, args):
        kinds = {"in its group": {}, "in a session of its own": {"start_new_session": True}}
        pids = {kind: subprocess.Popen(["sleep", "1000"], **how).pid for kind, how in kinds.items()}
        pids["without a parent"] = int(subprocess.check_output(["sh", "-c", "setsid sleep 1000 >&- & echo $!"]))
        if OWN_PROCESS:
            forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
            forked.start()
            pids["forked"] = forked.pid
            pids["forked, in a session of its own"] = os.fork()
            if not pids["forked, in a session of its own"]:
                os.setsid()
                time.sleep(1000)
        pids["the model's"] = os.getpid()
        with open(FILE, "w") as file:
            json.dump({"argv": sys.argv, "pids": pids}, file)
    def execute(self, requests):
        return []
"""


@pytest.mark.parametrize("execution", ["process", "in-process"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_model_has_started_ends_with_the_server(world: "World", execution: str, number: int) -> None:
    """L22, P21: whatever way it was started, and whatever signal ends the server."""
    directory = world.models / "starting"
    (directory / "1").mkdir(parents=True, exist_ok=True)
    found = world.root / f"started-{execution}-{number}.json"
    code = STARTING.replace("OWN_PROCESS", repr(execution == "process")).replace("FILE", repr(str(found)))
    (directory / "1" / "model.py").write_text(code)
    (directory / "config.pbtxt").write_text(CONFIG)
    flags = (f"--backend-config=python,execution={execution}", "--exit-timeout-secs=2")  # One waits for its fork.
    server = world.serve("--load-model=starting", *flags)
    started = json.loads(found.read_text())
    assert started["argv"] == [""], "the command line is the server's"
    with contextlib.ExitStack() as stack:
        fds = {}
        for kind, pid_of in started["pids"].items():
            fds[kind] = os.pidfd_open(pid_of)
            stack.callback(os.close, fds[kind])
        server.stop(number)
        end = time.monotonic() + 60
        ended = {kind for kind, fd in fds.items() if select.select([fd], [], [], max(0, end - time.monotonic()))[0]}
        for kind in fds.keys() - ended:
            os.kill(started["pids"][kind], signal.SIGKILL)
        assert ended == fds.keys()


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
