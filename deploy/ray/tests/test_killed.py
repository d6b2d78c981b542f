"""A replica that is killed: the rest answer, Ray starts another one, and models come there through their agents."""

import contextlib
import os
import queue
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc

from deploy.ray.tests.kit import PATIENCE, App, World, await_true

_MODELS = ("one", "two", "three")
_STEPS = """
import socket
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            port = pb_utils.get_input_tensor_by_name(request, "PORT").as_numpy()
            sender = request.get_response_sender()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("STEP", port)]))
            with socket.create_connection(("127.0.0.1", int(port[0]))) as gate:
                gate.recv(1)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_ENDS = """
import contextlib
import os

class TritonPythonModel:
    def execute(self, requests):
        os._exit(1)
"""
_PORT = 'input { name: "PORT" data_type: TYPE_INT32 dims: [1] } output { name: "STEP" data_type: TYPE_INT32 dims: [1] }'
_DECOUPLED = f"{_PORT} model_transaction_policy {{ decoupled: true }}"
_GONE = "the replica that had the request has ended before it answered"


@pytest.fixture
def app(world: World) -> App:
    if not world.names:
        for number, name in enumerate(_MODELS):
            world.model(name, 10.0 * number, {"copies": "yes"})
    return world.run(min_replicas=3, models_per_replica=3)


def test_the_rest_answer_and_the_models_come_back_through_their_agents(app: App, world: World) -> None:
    seen: Counter[str] = Counter()
    wrong: list[str] = []
    over = threading.Event()

    def ask(start: int) -> None:
        turn = start
        while not over.is_set():
            model = _MODELS[turn % 3]
            answer = app.ask(model, float(turn))
            if answer.status_code == 200:
                expected = [turn + 10.0 * (turn % 3), turn + 1 + 10.0 * (turn % 3)]
                seen[model] += 1
                if answer.json()["outputs"][0]["data"] != expected:
                    wrong.append(answer.text)
            elif answer.status_code == 503 and _GONE in answer.text:
                seen["ended"] += 1
            else:
                wrong.append(f"{answer.status_code} {answer.text}")
            turn += 1

    clients = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for client in clients:
        client.start()
    try:
        await_true(lambda: all(seen[model] > 10 for model in _MODELS) or wrong, "answers of every model")
        before = app.processes()
        loading = {int(pid) for pid, _, action in world.calls() if action == "LOAD_COMPLETE"}
        victim = next(pid for pid in before if pid in loading)
        lost = {model for pid, model, action in world.calls() if int(pid) == victim and action == "LOAD_COMPLETE"}
        os.kill(victim, signal.SIGKILL)
        marks = Counter(seen)
        await_true(lambda: all(seen[model] > marks[model] + 20 for model in _MODELS) or wrong, "answers of the rest")
        await_true(lambda: len(set(app.processes()) - {victim}) == 3, "a replica in the place of the killed one")
        for model in lost:
            await_true(lambda model=model: app.ask(model).status_code == 200, "an answer")  # type: ignore[misc]
    finally:
        over.set()
        for client in clients:
            client.join()
    assert wrong == []
    alive = set(app.processes())
    again = {model for pid, model, action in world.calls() if int(pid) in alive and action == "LOAD_COMPLETE"}
    assert lost <= again, "loaded by their agents in a process that lives"
    assert seen["ended"] <= 4, "at most one request of each client was with the replica"


def test_a_load_whose_replica_is_killed_fails_and_the_next_one_succeeds(
    app: App, world: World, in_background: Callable[[Callable[[], Any]], Callable[[], Any]]
) -> None:
    gate = world.gate()
    world.model("gated", 1.0, {"gate": str(gate.port)})
    answer = in_background(lambda: app.ask("gated"))
    gate.reached()
    (victim,) = {int(pid) for pid, model, action in world.calls() if model == "gated" and action == "LOAD"}
    os.kill(victim, signal.SIGKILL)
    refused = answer()
    assert (refused.status_code, _GONE in refused.text) == (503, True), refused.text
    gate.close()
    await_true(lambda: len(set(app.processes()) - {victim}) == 3, "a replica in the place of the killed one")
    world.models.joinpath("gated/config.pbtxt").write_text('backend: "onnxruntime" max_batch_size: 4')
    assert app.ask("gated").json()["outputs"][0]["data"] == [2.0, 3.0]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_stream_whose_replica_is_killed_ends_with_an_error(app: App, world: World, protocol: str) -> None:
    gate = world.gate()
    if not (world.models / "steps").exists():
        world.python("steps", _STEPS, _DECOUPLED)
    got: queue.Queue[Any] = queue.Queue()
    client: Any
    if protocol == "http":
        ask = {"PORT": gate.port, "stream": True}

        def read() -> None:
            url = f"{app.url}/v2/models/steps/generate_stream"
            with httpx.stream("POST", url, json=ask, timeout=PATIENCE) as response:
                for line in response.iter_lines():
                    if line:
                        got.put(line)
            got.put(None)

        client = threading.Thread(target=read)
        client.start()
    else:
        client = tritonclient.grpc.InferenceServerClient(app.cluster.grpc)
        client.start_stream(lambda result, error: got.put(error or result))
        port = tritonclient.grpc.InferInput("PORT", [1], "INT32")
        port.set_data_from_numpy(np.array([gate.port], np.int32))
        client.async_stream_infer("steps", [port])
    assert "error" not in str(got.get(timeout=PATIENCE)), "the first answer came"
    gate.reached()
    (victim,) = [pid for pid in app.processes() if _is_connected(pid, gate.port)]
    os.kill(victim, signal.SIGKILL)
    assert _GONE in str(got.get(timeout=PATIENCE))
    gate.close()
    if protocol == "http":
        assert got.get(timeout=PATIENCE) is None
        client.join()
    else:
        client.close()
    await_true(lambda: len(set(app.processes()) - {victim}) == 3, "a replica in the place of the killed one")


def _is_connected(pid: int, port: int) -> bool:
    """Whether the process has a connection to a port of this machine."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ours = {f"socket:[{row[9]}]" for row in rows if row[2].endswith(f":{port:04X}")}
    return any(os.readlink(file) in ours for file in Path(f"/proc/{pid}/fd").iterdir() if file.is_symlink())


def test_a_request_that_ends_its_replica_ends_no_other(app: App, world: World) -> None:
    """What a replica has accepted goes to no other one when it ends: that would be the next to end."""
    world.python("ends", _ENDS, _PORT)
    before = set(app.processes())
    ask = {"inputs": [{"name": "PORT", "datatype": "INT32", "shape": [1], "data": [1]}]}
    answer = httpx.post(f"{app.url}/v2/models/ends/infer", json=ask, timeout=PATIENCE)
    assert (answer.status_code, _GONE in answer.text) == (503, True), answer.text
    assert len(before & set(app.processes())) == 2
    await_true(lambda: len(app.processes()) == 3, "a replica in its place")


def test_what_a_killed_replica_left_in_workspaces_goes_with_the_next_start(app: App, world: World) -> None:
    for name in _MODELS:
        assert app.ask(name).status_code == 200
    kept = world.owners()
    for pid in app.processes():
        os.kill(pid, signal.SIGKILL)
    await_true(lambda: len(set(app.processes()) - kept) == 3, "three replicas")
    await_true(lambda: httpx.get(f"{app.url}/v2/health/ready").status_code == 200, "a ready one")
    for name in _MODELS:
        await_true(lambda name=name: app.ask(name).status_code == 200, "an answer")  # type: ignore[misc]
    alive = set(app.processes())
    await_true(lambda: world.owners() <= alive, "only the workspaces of replicas that run")


def test_a_replica_that_is_stopped_is_replaced(world: World) -> None:
    """L27: it has its connections and answers nothing: only Ray's health check can tell."""
    world.model("still", 1.0)
    app = world.run(min_replicas=1, models_per_replica=1, health_check_period_s=1, health_check_timeout_s=1)
    assert app.ask("still").status_code == 200
    (victim,) = app.processes()
    os.kill(victim, signal.SIGSTOP)
    try:
        await_true(lambda: set(app.processes()) - {victim}, "a replica in the place of the stopped one")
        await_true(lambda: httpx.get(f"{app.url}/v2/health/ready").status_code == 200, "a ready one")
        assert app.ask("still").status_code == 200
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
