"""``--processes``: a model that keeps state is in one worker, and the others pass requests on to it."""

import hashlib
import json
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from server_stub.tests.openai.conftest import PARROT, PARROT_CONFIG
from server_stub.tests.serve.test_processes import IN_PROCESS, connections, processes
from server_stub.tests.serve.test_scheduling import SEQUENCES, SUMS, TENSORS

if TYPE_CHECKING:
    from server_stub.tests.serve.conftest import Server, World

WORKERS = 4
CLIENTS = 16

SLOW = """
import os
import time
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            path = {path!r}
            open(path + "-begun", "w").close()
            while not request.is_cancelled() and not os.path.exists(path + "-go"):
                time.sleep(0.01)
            if request.is_cancelled():
                open(path + "-cancelled", "w").close()
            sender = request.get_response_sender()
            tensor = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", tensor)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

CALLS = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X")
            call = pb_utils.InferenceRequest(model_name="negated", requested_output_names=["Y"], inputs=[x])
            answers.append(pb_utils.InferenceResponse([pb_utils.get_output_tensor_by_name(call.exec(), "Y")]))
        return answers
"""

FLOATS = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: [ -1, 4 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1, 4 ] }
"""
DECOUPLED = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }
model_transaction_policy { decoupled: true }
"""
ECHO = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
"""
ENSEMBLE = """
platform: "ensemble"
input { name: "X" data_type: TYPE_FP32 dims: [ -1, 4 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1, 4 ] }
ensemble_scheduling { step { model_name: "negated" model_version: -1
  input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } } }
"""
ACCESS = """
[clients.all]
keys = ["sha256:{}"]
models = ["*"]
rights = ["infer", "manage"]
[clients.over]
keys = ["sha256:{}"]
models = ["over"]
rights = ["infer"]
"""
ONE = 'parameters { key: "home" value { string_value: "one" } }'


def write(world: "World", name: str, code: str, config: str) -> None:
    (world.models / name / "1").mkdir(parents=True)
    if code:
        (world.models / name / "1" / "model.py").write_text(code)
    (world.models / name / "config.pbtxt").write_text(config)


@pytest.fixture(scope="module")
def server(world: "World") -> "Server":
    write(world, "sums", SUMS, TENSORS + SEQUENCES)
    write(world, "parrot", PARROT, PARROT_CONFIG)
    write(world, "calls", CALLS, FLOATS)
    write(world, "pipeline", "", ENSEMBLE)
    write(world, "echo", IN_PROCESS.format(trap=""), ECHO + ONE)
    world.model("negated", config=ONE)
    names = ("sums", "parrot", "negated", "calls", "pipeline", "echo", "plain")
    return world.serve(f"--processes={WORKERS}", "--allow-openai=true", *(f"--load-model={name}" for name in names))


def each(clients: list[httpx.Client], call: Callable[[httpx.Client], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(clients)) as pool:
        return list(pool.map(call, clients))


def asked(client: httpx.Client, model: str, values: list[float], **parameters: Any) -> httpx.Response:
    tensor = {"name": "X", "datatype": "FP32", "shape": [1, 4], "data": values}
    return client.post(f"/v2/models/{model}/infer", json={"inputs": [tensor], "parameters": parameters})


def summed(client: httpx.Client, name: str, value: int, **flags: bool) -> int:
    tensor = {"name": "X", "datatype": "INT32", "shape": [1, 1], "data": [value]}
    body = {"inputs": [tensor], "parameters": {"sequence_id": name, **flags}}
    answer = client.post("/v2/models/sums/infer", json=body)
    assert answer.status_code == 200, answer.text
    number: int = answer.json()["outputs"][0]["data"][0]
    return number


def test_the_requests_of_a_sequence_may_come_over_any_connections(server: "Server") -> None:
    with connections(server) as clients:

        def sequence(number: int) -> list[int]:
            chosen = [clients[(number + step * 7) % len(clients)] for step in range(6)]
            first, *middle, last = chosen
            sums = [summed(first, f"s{number}", number, sequence_start=True)]
            sums += [summed(client, f"s{number}", number) for client in middle]
            return [*sums, summed(last, f"s{number}", number, sequence_end=True)]

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(sequence, range(1, 33)))
    assert found == [[number * step for step in range(1, 7)] for number in range(1, 33)]


def test_chats_are_streamed_from_any_worker(server: "Server") -> None:
    text = "a text that is longer than three letters"

    def chat(number: int) -> list[str]:
        body = {"model": "parrot", "stream": True, "messages": [{"role": "user", "content": f"{number}: {text}"}]}
        pieces = []
        with (
            httpx.Client(base_url=server.http.base_url, timeout=60) as client,
            client.stream("POST", "/v1/chat/completions", json=body) as answer,
        ):
            assert answer.status_code == 200
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    choices = json.loads(line.removeprefix("data: "))["choices"]
                    pieces += [choice["delta"].get("content") or "" for choice in choices]
        return pieces

    with ThreadPoolExecutor(CLIENTS) as pool:
        found = list(pool.map(chat, range(CLIENTS)))
    assert ["".join(pieces) for pieces in found] == [f"{number}: {text}" for number in range(CLIENTS)]
    assert min(map(len, found)) > len(text) // 4


def test_a_home_answers_models_and_ensembles_in_every_worker(server: "Server") -> None:
    with connections(server) as clients:
        for model in ("negated", "pipeline", "calls"):
            answers = each(clients, partial(asked, model=model, values=[1, 2, 3, 4]))
            assert {tuple(answer.json()["outputs"][0]["data"]) for answer in answers} == {(-1, -2, -3, -4)}
        assert {c.get(f"/v2/models/{m}/ready").status_code for c in clients for m in ("negated", "sums")} == {200}


def test_what_is_wrong_with_a_request_has_the_text_of_one_process(server: "Server") -> None:
    with connections(server) as clients:
        tensor = {"name": "X", "datatype": "INT32", "shape": [1, 1], "data": [1]}
        body = {"inputs": [tensor], "parameters": {"sequence_id": "ghost"}}
        ghosts = each(clients, lambda client: client.post("/v2/models/sums/infer", json=body))
        assert {answer.status_code for answer in ghosts} == {400}
        wrong = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
        assert all("sequence ghost to model 'sums' must spec" in answer.text for answer in ghosts)
        wrong = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
        refused = each(clients, lambda client: client.post("/v2/models/negated/infer", json=wrong))
        assert {answer.status_code for answer in refused} == {400}


def test_the_index_has_the_home_and_the_statistics_count_once(server: "Server") -> None:
    index = server.index()
    assert {name for name in index if "home" in index[name]} == {"sums", "parrot", "negated", "echo"}
    assert len({index[name]["home"] for name in ("sums", "parrot", "negated")}) > 1
    (before,) = server.http.get("/v2/models/negated/stats").json()["model_stats"]
    with connections(server) as clients:
        assert {answer.status_code for answer in each(clients, lambda c: asked(c, "negated", [1, 2, 3, 4]))} == {200}
        (after,) = server.http.get("/v2/models/negated/stats").json()["model_stats"]
        assert after["inference_count"] - before["inference_count"] == len(clients)
    with triton.InferenceServerClient(f"127.0.0.1:{server.port('grpc')}") as client:
        assert "negated" in {model.name for model in client.get_model_repository_index().models}


def test_large_tensors_cross_and_their_memory_is_used_again(server: "Server") -> None:
    array = np.arange(2 << 20, dtype=np.float32)
    for _ in range(WORKERS):  # A connection each, to different workers.
        with triton.InferenceServerClient(f"127.0.0.1:{server.port('grpc')}") as client:
            tensor = triton.InferInput("X", list(array.shape), "FP32")
            tensor.set_data_from_numpy(array)
            for _ in range(4):
                assert np.array_equal(client.infer("echo", [tensor]).as_numpy("X"), array)


def test_a_client_that_goes_cancels_its_request_at_the_home(world: "World") -> None:
    paths = {name: str(world.root / name) for name in ("slow0", "slow1")}
    for name, path in paths.items():
        write(world, name, SLOW.format(path=path), DECOUPLED)
    server = world.serve("--processes=2", *(f"--load-model={name}" for name in paths))
    assert {server.index()[name]["home"] for name in paths} == {"0", "1"}
    # Two homes and one connection: of one model it is in another process.
    with triton.InferenceServerClient(f"127.0.0.1:{server.port('grpc')}") as client:
        client.start_stream(lambda result, error: None)
        tensor = triton.InferInput("X", [4], "FP32")
        tensor.set_data_from_numpy(np.zeros(4, np.float32))
        for name in paths:
            client.async_stream_infer(name, [tensor])
        server.until(lambda: all(os.path.exists(f"{path}-begun") for path in paths.values()), "both requests")
        client.stop_stream(cancel_requests=True)
    server.until(lambda: all(os.path.exists(f"{path}-cancelled") for path in paths.values()), "both cancellations")
    assert server.stop() == 0


def test_an_unload_waits_for_what_other_workers_have_passed_on(world: "World") -> None:
    path = str(world.root / "waits")
    write(world, "waits", SLOW.format(path=path), DECOUPLED)
    server = world.serve("--processes=2", "--load-model=waits")
    body = {"X": [1, 2, 3, 4]}
    with connections(server) as clients:
        answers: list[int] = []
        threads = [
            threading.Thread(
                target=lambda client=client: answers.append(
                    client.post("/v2/models/waits/generate_stream", json=body).status_code
                )
            )
            for client in clients
        ]
        for thread in threads:
            thread.start()
        server.until(lambda: os.path.exists(f"{path}-begun"), "a request")
        unload = threading.Thread(target=server.unload, args=("waits",))
        unload.start()
        open(f"{path}-go", "w").close()
        for thread in (*threads, unload):
            thread.join(60)
    assert set(answers) <= {200, 400, 404}
    assert answers.count(200) >= 1
    assert server.stop() == 0


def test_a_home_that_dies_fails_its_requests_and_another_process_takes_its_place(world: "World") -> None:
    path = str(world.root / "dies")
    write(world, "dies", SLOW.format(path=path), DECOUPLED)
    server = world.serve("--processes=3", "--load-model=dies", "--load-model=plain")
    home = int(server.index()["dies"]["home"])
    tensor = triton.InferInput("X", [4], "FP32")
    tensor.set_data_from_numpy(np.zeros(4, np.float32))
    errors: list[Any] = []
    over = threading.Event()

    def answered(result: Any, error: Any) -> None:
        errors.append(error)
        over.set()

    victim = sorted(processes(server))[home]
    with triton.InferenceServerClient(f"127.0.0.1:{server.port('grpc')}") as client:
        client.start_stream(answered)
        client.async_stream_infer("dies", [tensor])
        server.until(lambda: os.path.exists(f"{path}-begun"), "the request")
        os.kill(victim, signal.SIGKILL)
        assert over.wait(60)
    assert isinstance(errors[0], InferenceServerException)
    server.until(lambda: "serves again" in server.log, "another worker")
    open(f"{path}-go", "w").close()
    body = {"X": [1, 2, 3, 4]}
    with connections(server) as clients:
        answers = each(clients, lambda client: client.post("/v2/models/dies/generate", json=body).status_code)
        assert set(answers) == {200}
    assert server.stop() == 0


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ('parameters { key: "home" value { string_value: "two" } }', "must be 'any' or 'one'"),
        ('sequence_batching { } parameters { key: "home" value { string_value: "any" } }', "must meet in one process"),
    ],
)
def test_a_home_that_makes_no_sense_is_refused(world: "World", server: "Server", config: str, text: str) -> None:
    world.model("odd", config=config)
    answer = server.load("odd")
    assert answer.status_code == 400
    assert text in answer.text


def test_a_home_judges_the_rights_of_clients_itself(world: "World") -> None:
    world.model("kept", config='parameters { key: "home" value { string_value: "one" } }')
    write(world, "over", "", ENSEMBLE.replace("negated", "kept"))
    path = world.root / "access.toml"
    path.write_text(ACCESS.format(*(hashlib.sha256(key.encode()).hexdigest() for key in ("a" * 32, "b" * 32))))
    server = world.serve("--processes=3", f"--access={path}", "--load-model=kept")

    def ask(client: httpx.Client, key: str, model: str) -> int:
        tensor = {"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [-1, 2, -3, 4]}
        headers = {"x-api-key": key * 32}
        return client.post(f"/v2/models/{model}/infer", json={"inputs": [tensor]}, headers=headers).status_code

    with connections(server) as clients:
        assert {ask(client, "a", "kept") for client in clients} == {200}
        assert {ask(client, "b", "kept") for client in clients} == {403}
        loaded = clients[0].post("/v2/repository/models/over/load", headers={"x-api-key": "a" * 32})
        assert loaded.status_code == 200, loaded.text
        assert {ask(client, "b", "over") for client in clients} == {200}
