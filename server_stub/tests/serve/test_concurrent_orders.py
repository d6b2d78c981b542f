"""Loads and unloads at once, and signals while something runs."""

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from server_stub.tests.serve.conftest import PROCESSES
from tests.hostile.test_models_that_never_end import FOR_EVER, WARM_UP, folding, looping

if TYPE_CHECKING:
    from server_stub.tests.serve.conftest import Server, World

InBackground = Callable[[Callable[[], Any]], Callable[[], Any]]

LOADED = ["agent model_initialize", "agent LOAD", "agent LOAD_COMPLETE"]
CANCELLED = ["agent model_initialize", "agent LOAD", "agent LOAD_FAIL", "agent model_finalize"]
UNLOADED = ["agent UNLOAD", "agent UNLOAD_COMPLETE", "agent model_finalize"]


@pytest.fixture(scope="module")
def server(world: "World") -> "Server":
    world.agent("agent")
    return world.serve("--load-model=plain")


def test_two_loads_of_one_model_at_once_are_one(world: "World", server: "Server", in_background: InBackground) -> None:
    gate = world.gate()
    world.model("twice", [("agent", {"block": f"LOAD {gate.port}"})])
    loads = [in_background(lambda: server.load("twice")) for _ in range(2)]
    gate.reached()
    assert server.answer("plain") == [1, -2, 3, -4]
    assert server.index()["twice"]["state"] == "LOADING"
    gate.open()
    assert [load().status_code for load in loads] == [200, 200]
    assert world.calls("twice") == LOADED
    assert server.unload("twice").status_code == 200


def test_different_models_are_loaded_at_once(world: "World", server: "Server", in_background: InBackground) -> None:
    gates = {name: world.gate() for name in ("one", "two")}
    for name, gate in gates.items():
        world.model(name, [("agent", {"block": f"LOAD {gate.port}"})])
    loads = [in_background(lambda name=name: server.load(name)) for name in gates]  # type: ignore[misc]
    for gate in gates.values():
        gate.reached()
    gates["two"].open()
    gates["one"].open()
    assert [load().status_code for load in loads] == [200, 200]


def test_an_unload_during_a_load_ends_it(world: "World", server: "Server", in_background: InBackground) -> None:
    gate = world.gate()
    world.model("given-up", [("agent", {"await_cancel": f"LOAD {gate.port}"})])
    load = in_background(lambda: server.load("given-up"))
    gate.reached()
    assert server.unload("given-up").status_code == 200
    reply = load()
    assert reply.status_code >= 400
    assert "Newer operation has been applied to the model lifecycle" in reply.json()["error"]
    assert world.calls("given-up") == CANCELLED
    assert server.index()["given-up"]["state"] == "UNAVAILABLE"
    assert world.leftovers(server) == []
    world.configure("given-up", [("agent", {})])
    assert server.load("given-up").status_code == 200
    assert server.answer("given-up") == [1, -2, 3, -4]


def test_a_signal_during_a_load_cancels_it_and_all_agents_hear(world: "World", in_background: InBackground) -> None:
    gate = world.gate()
    world.agent("agent")
    world.model("ready", [("agent", {"copy": "LOAD confidential"})])
    world.model("loading", [("agent", {"copy": "LOAD disk"}), ("agent", {"await_cancel": f"LOAD {gate.port}"})])
    server = world.serve("--load-model=ready")
    load = in_background(lambda: server.load("loading"))
    gate.reached()
    assert server.stop() == 0
    reply = load()
    assert reply.status_code == 400
    assert "load failed for model 'loading': the server is stopping" in reply.json()["error"]
    assert world.calls("loading") == [*CANCELLED[:2] * 2, *["agent LOAD_FAIL"] * 2, *["agent model_finalize"] * 2]
    assert world.calls("ready") == LOADED + UNLOADED
    assert world.leftovers(server) == []


def test_a_signal_during_the_start_cancels_it(world: "World") -> None:
    gate = world.gate()
    world.agent("agent")
    world.model("starting", [("agent", {"await_cancel": f"LOAD {gate.port}"})])
    server = world.start("--model-control-mode=explicit", "--load-model=starting", "--load-model=plain")
    gate.reached()
    assert server.stop() == 0
    assert world.calls("starting") == CANCELLED
    assert world.leftovers(server) == []


def test_agents_that_never_return_cannot_keep_the_server_from_stopping(
    world: "World", in_background: InBackground
) -> None:
    """L26: who waits for such a load gets an answer."""
    gates = {name: world.gate() for name in ("stuck", "held")}
    world.agent("agent")
    for name, gate in gates.items():
        world.model(name, [("agent", {"copy": "LOAD disk"}), ("agent", {"block": f"LOAD {gate.port}"})])
    server = world.serve("--load-model=plain", "--exit-timeout-secs=1")
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.port('grpc')}") as client:

        def load_held() -> str:
            with pytest.raises(InferenceServerException) as caught:
                client.load_model("held")
            return str(caught.value)

        load, other = in_background(lambda: server.load("stuck")), in_background(load_held)
        for gate in gates.values():
            gate.reached()
        assert server.stop() == 1
        assert load().status_code == 503, "its client is told"
        assert "stop" in load().json()["error"]
        told = "[StatusCode.UNAVAILABLE] model 'held': the server has stopped without waiting any longer"
        assert other() == told
    assert "the exit timeout is over, and these models are not unloaded: held (LOADING), stuck (LOADING)" in server.log
    assert "failed to stop server: Internal - Exit timeout expired. Exiting immediately." in server.log


def test_a_third_signal_ends_it_at_once_and_the_next_start_tidies_up(
    world: "World", in_background: InBackground
) -> None:
    gate = world.gate()
    world.agent("agent")
    world.model("held", [("agent", {"copy": "LOAD disk"}), ("agent", {"block": f"LOAD {gate.port}"})])
    server = world.serve("--load-model=plain")
    in_background(lambda: server.load("held"))
    gate.reached()
    server.process.send_signal(signal.SIGINT)
    server.until(lambda: "Waiting for in-flight requests to complete" in server.log, "the first signal")
    server.process.send_signal(signal.SIGTERM)
    server.until(lambda: "a third signal ends the server" in server.log, "the second signal")
    assert server.stop() == 1
    assert world.leftovers(server)
    after = world.serve("--load-model=plain")
    assert world.leftovers(server) == []
    assert after.stop() == 0


def test_a_signal_under_traffic_loses_nothing_that_was_accepted(world: "World", in_background: InBackground) -> None:
    gate = world.gate()
    directory = world.models / "waits" / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(
        "import socket\n"
        "import triton_python_backend_utils as pb_utils\n"
        "class TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        f"        with socket.create_connection(('127.0.0.1', {gate.port})) as gate:\n"
        "            gate.recv(1)\n"
        "        tensor = pb_utils.get_input_tensor_by_name(requests[0], 'X')\n"
        "        return [pb_utils.InferenceResponse([pb_utils.Tensor('Y', tensor.as_numpy())])]\n"
    )
    tensor = 'name: "%s" data_type: TYPE_FP32 dims: [1, 4]'
    (directory.parent / "config.pbtxt").write_text(
        f'backend: "python" input {{ {tensor % "X"} }} output {{ {tensor % "Y"} }}'
    )
    server = world.serve("--load-model=plain", "--load-model=waits")
    assert server.answer("plain") == [1, -2, 3, -4]
    running = in_background(lambda: server.ask("waits"))
    gate.reached()
    with httpx.Client(base_url=server.http.base_url) as kept, triton.InferenceServerClient(server.address) as client:
        assert kept.get("/v2/health/live").status_code == 200
        assert client.is_server_ready()
        server.process.send_signal(signal.SIGTERM)
        server.until(lambda: "Waiting for in-flight requests to complete" in server.log, "the signal")
        refused = kept.post("/v2/models/plain/infer", json={})
        assert refused.status_code == 503
        assert refused.json()["error"]
    gate.open()
    reply = running()
    assert reply.status_code == 200
    assert reply.json()["outputs"][0]["data"] == [-1, 2, -3, 4]
    assert server.ended() == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://{server.address}/v2/health/live")


def test_every_request_around_a_signal_is_answered_or_refused(world: "World", in_background: InBackground) -> None:
    server = world.serve("--load-model=plain")
    assert server.answer("plain") == [1, -2, 3, -4]

    def ask_until_it_is_gone() -> list[httpx.Response]:
        answers: list[httpx.Response] = []
        with suppress(httpx.TransportError):  # the connection ends with the server
            while True:
                answers.append(server.ask("plain"))
                asked.set()
        return answers

    asked = threading.Event()
    clients = [in_background(ask_until_it_is_gone) for _ in range(3)]
    assert asked.wait(60)
    assert server.stop() == 0
    for answers in (client() for client in clients):
        codes = [answer.status_code for answer in answers]
        # Workers refuse one after the other, and the requests of a client may come over several connections.
        assert PROCESSES or codes == sorted(codes)
        assert set(codes) <= {200, 503}
        assert all(answer.json()["outputs"][0]["data"] == [1, -2, 3, -4] for answer in answers if answer.is_success)


def test_loads_and_runs_that_never_end_leave_the_exit_status_at_zero(
    world: "World", in_background: InBackground
) -> None:
    models = {"open": (folding(), WARM_UP), "warm-up": (looping(), WARM_UP), "run": (looping(), "")}
    for name, (model, config) in models.items():
        for folder in ("1", "warmup"):
            (world.models / name / folder).mkdir(parents=True)
        (world.models / name / "1" / "model.onnx").write_bytes(model.SerializeToString())
        (world.models / name / "warmup" / "rounds").write_bytes(FOR_EVER.to_bytes(8, "little"))
        (world.models / name / "config.pbtxt").write_text(f'backend: "onnxruntime" {config}')
    server = world.serve("--load-model=run", "--exit-timeout-secs=8")
    waiting = [in_background(lambda name=name: server.load(name)) for name in ("open", "warm-up")]  # type: ignore[misc]
    tensor = {"name": "rounds", "datatype": "INT64", "shape": [1], "data": [FOR_EVER]}
    waiting.append(in_background(lambda: server.http.post("/v2/models/run/infer", json={"inputs": [tensor]})))
    server.until(lambda: [it.get("state") for it in server.index().values()].count("LOADING") == 2, "the loads")
    assert server.stop() == 0
    assert [answer().status_code for answer in waiting] == [400, 400, 503], "two were cancelled, one was ended"
