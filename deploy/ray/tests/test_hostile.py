"""Names, loads and unloads of clients who do as they like."""

import shutil
import socket
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import httpx
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from deploy.ray.tests.kit import PATIENCE, App, Gate, World, await_true, tensor

_Begin = Callable[[Callable[[], Any]], Callable[[], Any]]

_WAITS = """
import socket
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            port = int(pb_utils.get_input_tensor_by_name(request, "PORT").as_numpy()[0])
            with socket.create_connection(("127.0.0.1", port)) as gate:
                gate.recv(1)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("DONE", np.array([port], np.int32))]))
        return answers
"""
_PORTS = (
    'input { name: "PORT" data_type: TYPE_INT32 dims: [1] } output { name: "DONE" data_type: TYPE_INT32 dims: [1] }'
)


_CANCELS = """
import socket, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            port = int(pb_utils.get_input_tensor_by_name(request, "PORT").as_numpy()[0])
            with socket.create_connection(("127.0.0.1", port)):
                while not request.is_cancelled():
                    time.sleep(0.01)
            with socket.create_connection(("127.0.0.1", port)):
                pass
        error = pb_utils.TritonError("cancelled", pb_utils.TritonError.CANCELLED)
        return [pb_utils.InferenceResponse(error=error) for _ in requests]
"""


@pytest.fixture(scope="module")
def app(world: World) -> App:
    for number in range(4):
        world.model(f"m{number}", 10.0 * number, {})
    world.model("refused", agent={"refuse": "this model is not for you"})
    world.model("sequences", config="sequence_batching { max_sequence_idle_microseconds: 1000000 }")
    world.python("waits", _WAITS, _PORTS)
    world.python("cancels", _CANCELS, _PORTS)
    return world.run(min_replicas=2, models_per_replica=2)


def _wait_at(app: App, gate: Gate) -> httpx.Response:
    ask = {"inputs": [{"name": "PORT", "datatype": "INT32", "shape": [1], "data": [gate.port]}]}
    return httpx.post(f"{app.url}/v2/models/waits/infer", json=ask, timeout=PATIENCE)


@pytest.mark.parametrize(
    "name", ["a%2Fb", "..%2Fmodels", "%2E%2E", "x" * 300, "%00", "m0%0a", "%ff", "M0", "m0::m0", "nosuch"]
)
def test_a_name_that_no_model_has_is_not_found_and_costs_no_model_its_place(app: App, world: World, name: str) -> None:
    assert app.ask("m0").status_code == 200
    calls = len(world.calls())
    for _ in range(3):
        answer = app.ask(name)
        assert answer.status_code in (400, 404), answer.text
    for route in ("", "/config", "/ready", "/stats"):
        assert httpx.get(f"{app.url}/v2/models/{name}{route}", timeout=PATIENCE).status_code in (400, 404)
    assert len(world.calls()) == calls, "no agent was called"
    assert any("m0" in loaded for loaded in app.loaded())


def test_a_slash_in_a_name_over_grpc(app: App) -> None:
    with app.grpc() as client:
        for name in ("a/b", "../models/m0", "m0/", "/", ""):
            with pytest.raises(InferenceServerException):
                client.infer(name, [tensor(tritonclient.grpc)])


def test_an_agent_that_refuses_is_quoted_and_the_others_serve_on(app: App, world: World) -> None:
    for _ in range(3):
        answer = app.ask("refused")
        assert answer.status_code in (500, 503)
        assert "this model is not for you" in answer.text
    with app.grpc() as client, pytest.raises(InferenceServerException, match="this model is not for you"):
        client.infer("refused", [tensor(tritonclient.grpc)])
    with app.http() as client, pytest.raises(InferenceServerException, match="this model is not for you"):
        client.load_model("refused")
    assert app.ask("m1").json()["outputs"][0]["data"] == [11.0, 12.0]


def test_an_unload_waits_for_the_requests_that_run(app: App, world: World, in_background: _Begin) -> None:
    gate = world.gate()
    running = in_background(lambda: _wait_at(app, gate))
    gate.reached()
    with app.http() as client:
        unload = in_background(lambda: client.unload_model("waits"))
        await_true(lambda: any("waits" in loaded for loaded in app.loaded()), "it is still there")
        gate.open()
        unload()
    assert running().json()["outputs"][0]["data"] == [gate.port]
    assert not any("waits" in loaded for loaded in app.loaded())


def test_an_eviction_waits_for_the_requests_that_run(app: App, world: World, in_background: _Begin) -> None:
    gate = world.gate()
    running = in_background(lambda: _wait_at(app, gate))
    gate.reached()
    others = [in_background(lambda name=name: app.ask(name)) for name in ("m0", "m1", "m2", "m3", "m0", "m1")]  # type: ignore[misc]
    await_true(lambda: any("waits" in loaded for loaded in app.loaded()), "it is still there")
    gate.open()
    assert running().json()["outputs"][0]["data"] == [gate.port]
    assert [answer().status_code for answer in others] == [200] * 6


def test_two_loads_at_once_are_one(app: App, world: World, in_background: _Begin) -> None:
    gate = world.gate()
    world.model("late", 5.0, {"gate": str(gate.port)})
    answers = [in_background(lambda: app.ask("late")) for _ in range(4)]
    gate.reached()
    gate.close()
    assert [answer().json()["outputs"][0]["data"] for answer in answers] == [[6.0, 7.0]] * 4
    loads = [call for call in world.calls() if call[1:] == ["late", "LOAD_COMPLETE"]]
    assert len(loads) <= 2, "one for each replica that had a request at most"


def test_what_is_not_kept_on_ray_is_refused_by_its_name(app: App) -> None:
    config = '{"backend": "onnxruntime", "max_batch_size": 4}'
    with app.http() as client:
        with pytest.raises(InferenceServerException, match="allow-load-parameters"):
            client.load_model("m0", config=config)
        with pytest.raises(InferenceServerException, match="keeps sequences"):
            client.infer("sequences", [tensor(tritonclient.http)], sequence_id=1, sequence_start=True)
        for call in (client.get_trace_settings, client.get_log_settings):
            with pytest.raises(InferenceServerException, match="belong to one server"):
                call()
        with pytest.raises(InferenceServerException, match="shared memory is disabled"):
            client.register_system_shared_memory("r", "/r", 8)
    with app.grpc() as client:
        with pytest.raises(InferenceServerException, match="keeps sequences"):
            client.infer("sequences", [tensor(tritonclient.grpc)], sequence_id=1, sequence_start=True)
        for call in (client.get_trace_settings, client.get_log_settings):
            with pytest.raises(InferenceServerException, match="belong to one server"):
                call()
    version = httpx.post(f"{app.url}/v2/repository/models/m0/versions/1/load", timeout=PATIENCE)
    assert version.status_code == 501


def test_a_message_that_names_two_models_is_for_the_last(app: App) -> None:
    """So the parser of the protocol reads it: a check of the first would let the second in."""
    import grpc
    from repoagent_server.grpc import messages_pb2 as pb

    request = pb.ModelInferRequest(model_name="m1")
    request.inputs.add(name="X", datatype="FP32", shape=[1, 2]).contents.fp32_contents.extend([1, 2])
    message = pb.ModelInferRequest(model_name="nosuch").SerializeToString() + request.SerializeToString()
    with grpc.insecure_channel(app.cluster.grpc) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        answer = pb.ModelInferResponse.FromString(infer(message, timeout=PATIENCE))
        assert answer.model_name == "m1"
        with pytest.raises(grpc.RpcError):
            infer(b"\xff\xff\xff", timeout=PATIENCE)


def test_a_client_that_leaves_has_its_request_cancelled(app: App, world: World) -> None:
    gate = world.gate()
    body = b'{"inputs": [{"name": "PORT", "datatype": "INT32", "shape": [1], "data": [%d]}]}' % gate.port
    host, port = app.cluster.http.split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            b"POST /v2/models/cancels/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        gate.reached()
    gate.reached()  # the model goes there again once it sees that it is cancelled
    gate.close()
    with app.http() as client:
        client.unload_model("cancels")


def test_the_id_of_a_request_comes_back_once(app: App) -> None:
    url = f"{app.url}/v2/models/m0/ready"
    answer = httpx.get(url, headers={"x-request-id": "mine-1"}, timeout=PATIENCE)
    assert answer.headers.get_list("x-request-id") == ["mine-1"]


def test_a_model_that_has_left_the_repository_costs_no_other_its_place(app: App, world: World) -> None:
    directory = world.model("leaves", 1.0)
    assert app.ask("leaves").status_code == 200
    with app.http() as client:
        client.unload_model("leaves")
    shutil.rmtree(directory)
    assert app.ask("leaves").status_code == 404
    for name in ("m0", "m1"):
        assert app.ask(name).status_code == 200
    calls = len(world.calls())
    for _ in range(3):
        assert app.ask("leaves").status_code == 404
    assert len(world.calls()) == calls


def test_a_model_that_was_known_and_has_left_the_repository_costs_no_other_its_place(app: App, world: World) -> None:
    """The ingress has passed requests for it on before, and learns from a replica that it has gone."""
    directory = world.model("known", 1.0)
    assert app.ask("known").status_code == 200
    fill = ("m0", "m1", "m2", "m3")
    await_true(
        lambda: (
            [app.ask(name).status_code for name in fill] == [200] * 4
            and sorted(map(len, app.loaded())) == [2, 2]
            and not any("known" in loaded for loaded in app.loaded())
        ),
        "all places are taken by others",
    )
    shutil.rmtree(directory)
    calls, loaded = len(world.calls()), app.loaded()
    with app.grpc() as client:
        answers: SimpleQueue[Any] = SimpleQueue()
        client.start_stream(lambda result, error: answers.put(error or result))
        client.async_stream_infer("known", [tensor(tritonclient.grpc)])
        assert "unknown model: 'known'" in str(answers.get(timeout=PATIENCE))
        client.stop_stream()
        with pytest.raises(InferenceServerException, match="unknown model: 'known'"):
            client.get_model_metadata("known")
        with pytest.raises(InferenceServerException, match="known"):
            client.load_model("known")
    assert app.ask("known").status_code == 404
    assert (world.calls()[calls:], app.loaded()) == ([], loaded)
