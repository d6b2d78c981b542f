"""generate and generate_stream in front of the real core and models in Python."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from repoagent_server.http.api import api_service
from repoagent_server.http.frontend import Endpoint, HttpFrontend

from repoagent.serving.core import CoreOptions, ServingCore

_MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
        if b"raise" in text:
            raise ValueError("no such text")
        if b"refuse" in text:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("refused", pb_utils.TritonError.UNAVAILABLE))
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)])
"""

_DECOUPLED = """
import json
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            self._send(request, sender, json.loads(request.parameters()))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _send(self, request, sender, parameters):
        text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
        times = pb_utils.get_input_tensor_by_name(request, "TIMES")
        for _ in range(1 if times is None else int(times.as_numpy().ravel()[0])):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)]))
        if parameters.get("fail_last"):
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("the last one failed")))
        if "pipe" in parameters:
            while not sender.is_cancelled():
                time.sleep(0.001)
            with open(parameters["pipe"], "w") as pipe:
                pipe.write("cancelled")
"""

_INPUTS = """
input [{ name: "TEXT" data_type: TYPE_STRING dims: [-1] },
        { name: "TIMES" data_type: TYPE_INT32 dims: [1] optional: true }]
output [{ name: "OUT" data_type: TYPE_STRING dims: [-1] }]
"""


def _write(repository: Path, name: str, code: str, config: str) -> None:
    directory = repository / name / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(code)
    (directory.parent / "config.pbtxt").write_text(f'name: "{name}" backend: "python"\n{config}')


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    repository = tmp_path_factory.mktemp("repository")
    _write(repository, "echo", _MODEL, "max_batch_size: 4" + _INPUTS)
    _write(repository, "many", _DECOUPLED, "model_transaction_policy { decoupled: true }" + _INPUTS)
    _write(repository, "two", _MODEL, _INPUTS.replace(" optional: true", ""))
    core = ServingCore(CoreOptions(repositories=(str(repository),)))
    core.start()
    front = HttpFrontend(Endpoint(port=0), api_service(core))
    front.start()
    host, port = front.bind()
    with httpx.Client(base_url=f"http://{host}:{port}/v2/models", timeout=60) as client:
        yield client
    front.stop()
    core.stop()


def _events(response: httpx.Response) -> list[Any]:
    return [json.loads(event.removeprefix("data: ")) for event in response.text.split("\n\n")[:-1]]


def test_one_text_in_and_one_text_out(client: httpx.Client) -> None:
    answer = client.post("/echo/generate", json={"TEXT": "hello", "id": "r9"}).json()
    assert answer == {"id": "r9", "model_name": "echo", "model_version": "1", "OUT": "hello"}


def test_several_texts_are_one_row_of_a_batch(client: httpx.Client) -> None:
    assert client.post("/echo/generate", json={"TEXT": ["a", "b"]}).json()["OUT"] == ["a", "b"]


def test_a_model_that_answers_once_can_be_streamed(client: httpx.Client) -> None:
    assert [event["OUT"] for event in _events(client.post("/echo/generate_stream", json={"TEXT": "x"}))] == ["x"]


def test_a_decoupled_model_answers_as_often_as_it_likes(client: httpx.Client) -> None:
    for times in (0, 1, 5):
        response = client.post("/many/generate_stream", json={"TEXT": "x", "parameters": {"TIMES": times}})
        assert response.status_code == 200
        assert [event["OUT"] for event in _events(response)] == ["x"] * times


@pytest.mark.parametrize("times", [0, 2])
def test_a_decoupled_model_must_answer_once_without_a_stream(client: httpx.Client, times: int) -> None:
    response = client.post("/many/generate", json={"TEXT": "x", "TIMES": times})
    assert response.status_code == 500
    assert "exactly 1 response" in response.json()["error"]
    assert client.post("/many/generate", json={"TEXT": "x"}).json()["OUT"] == "x"


def test_a_decoupled_model_is_not_for_the_plain_route(client: httpx.Client) -> None:
    # As a stock Triton 2.51 answers, whatever the model would do with the request.
    tensor = {"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["x"]}
    response = client.post("/many/infer", json={"inputs": [tensor]})
    assert response.status_code == 501
    assert response.json() == {"error": "HTTP end point doesn't support models with decoupled transaction policy"}


def test_a_failure_at_first_is_500_and_a_later_one_is_an_event(client: httpx.Client) -> None:
    body = {"TEXT": "x", "TIMES": 0, "fail_last": True}
    response = client.post("/many/generate_stream", json=body)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (response.status_code, _events(response)) == (500, [{"error": "the last one failed"}])
    response = client.post("/many/generate_stream", json={**body, "TIMES": 1})
    assert response.status_code == 200
    assert _events(response)[1] == {"error": "the last one failed"}
    response = client.post("/many/generate", json=body)
    assert (response.status_code, response.json()) == (500, {"error": "the last one failed"})


@pytest.mark.parametrize(("text", "status", "reason"), [("raise", 500, "no such text"), ("refuse", 503, "refused")])
def test_the_failure_of_a_model_that_answers_once_is_an_event(
    client: httpx.Client, text: str, status: int, reason: str
) -> None:
    response = client.post("/echo/generate_stream", json={"TEXT": text})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.status_code == status
    assert [reason in event["error"] for event in _events(response)] == [True]
    response = client.post("/echo/generate", json={"TEXT": text})
    assert (response.status_code, response.headers["content-type"]) == (status, "application/json")
    assert reason in response.json()["error"]


def test_missing_inputs_are_named(client: httpx.Client) -> None:
    for route in ("generate", "generate_stream"):
        response = client.post(f"/many/{route}", json={"id": "r"})
        assert response.status_code == 400
        assert response.json()["error"] == (
            "[request id: r] expected number of inputs between 1 and 2 but got 0 inputs for model 'many'. Got input(s) "
            "[], but missing required input(s) ['TEXT']. Please provide all required input(s)."
        )
        response = client.post(f"/two/{route}", json={"TEXT": "a"})
        assert response.json()["error"] == (
            "[request id: <id_unknown>] expected 2 inputs but got 1 inputs for model 'two'. Got input(s) ['TEXT'], but "
            "missing required input(s) ['TIMES']. Please provide all required input(s)."
        )


def test_a_client_that_leaves_has_its_request_cancelled(client: httpx.Client, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with client.stream("POST", "/many/generate_stream", json={"TEXT": "x", "pipe": str(pipe)}) as response:
        assert next(response.iter_lines()).startswith("data: ")
    assert pipe.read_text() == "cancelled"
