"""generate and generate_stream over the tests' core: how many responses, their form, and errors around them."""

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from repoagent_server.handlers.inference import Served
from repoagent_server.http import generate
from repoagent_server.http.api import api_service
from repoagent_server.http.frontend import Endpoint, HttpFrontend

from repoagent.errors import CancelledError, InternalError, NotFoundError, UnavailableError, UnsupportedError
from repoagent.serving.core import CoreOptions, ServingCore
from repoagent.serving.measuring.custom_metrics import REGISTRY, MetricKind
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.requests.tensor import Tensor

_PATH = "/v2/models/str/generate"
_STREAM = "/v2/models/str/generate_stream"
_BODY = '{"INPUT0": "a"}'
_EVENTS = "text/event-stream; charset=utf-8"
_JSON = "application/json"
_NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)


def _texts(*texts: bytes) -> Tensor:
    array = np.empty(len(texts), np.object_)
    array[:] = texts
    return Tensor.of(array)


def _answer(*texts: bytes, **members: Any) -> InferResponse:
    return InferResponse("str", "1", "", {"OUTPUT0": _texts(*texts)}, **members)


def test_an_answer_has_id_name_version_parameters_and_outputs(core: Any, client: httpx.Client) -> None:
    outputs = {
        "ONE": _texts("é".encode()),
        "TWO": _texts(b"a", b"b"),
        "GRID": Tensor.of(np.arange(4, dtype=np.float32).reshape(2, 2)),
        "INT": Tensor.of(np.array([[7]], np.int64)),
        "BOOL": Tensor.of(np.array([True])),
        "NONE": Tensor.of(np.zeros((0, 3), np.float32)),
    }
    core.responses = [(InferResponse("str", "1", "r1", outputs, {"seconds": 0.5, "last": True}), True)]
    response = client.post(_PATH, content=_BODY)
    assert (response.status_code, response.headers["content-type"]) == (200, _JSON)
    assert list(response.json().items()) == [
        ("id", "r1"),
        ("model_name", "str"),
        ("model_version", "1"),
        ("seconds", 0.5),
        ("last", True),
        ("ONE", "é"),
        ("TWO", ["a", "b"]),
        ("GRID", [0.0, 1.0, 2.0, 3.0]),
        ("INT", 7),
        ("BOOL", True),
        ("NONE", []),
    ]


@pytest.mark.parametrize("path", ["generate", "invocations"])
def test_many_values_are_written_beside_the_event_loop(
    core: Any, client: httpx.Client, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    threads = []
    name = "write_generate" if path == "generate" else "write_table"
    write = getattr(generate, name)

    def written(response: InferResponse) -> bytes:
        threads.append(threading.current_thread().name)
        return bytes(write(response))

    monkeypatch.setattr(generate, name, written)
    body = {"INPUT0": "x"} if path == "generate" else {"instances": ["x"]}
    for count in (3, 1 << 17):
        values = np.arange(count, dtype=np.int32).reshape(-1, 1)
        core.responses = [(InferResponse("str", "1", "", {"OUTPUT0": Tensor.of(values)}), True)]
        found = client.post(f"/v2/models/str/{path}", json=body).json()
        assert found["OUTPUT0" if path == "generate" else "predictions"] == list(range(count))
    assert threads[0] != threads[1]


def test_without_an_id_the_answer_has_none(client: httpx.Client) -> None:
    answer = client.post("/v2/models/str/versions/1/generate", content=_BODY).json()
    assert answer == {"model_name": "str", "model_version": "1", "OUTPUT0": "a"}


@pytest.mark.parametrize(
    "responses",
    [[(None, True)], [(_answer(b"a"), False), (_answer(b"b"), True)], [(_answer(b"a"), False)] * 2 + [(None, True)]],
)
def test_generate_takes_exactly_one_response(core: Any, client: httpx.Client, responses: Any) -> None:
    core.responses = responses
    response = client.post(_PATH, content=_BODY)
    assert (response.status_code, response.json()) == (500, {"error": _NOT_ONE})


def test_generate_takes_one_response_and_an_empty_end(core: Any, client: httpx.Client) -> None:
    core.responses = [(_answer(b"a"), False), (None, True)]
    assert client.post(_PATH, content=_BODY).json()["OUTPUT0"] == "a"


@pytest.mark.parametrize("path", [_PATH, _STREAM])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InternalError("x"), 500),
        (NotFoundError("x"), 404),
        (UnavailableError("x"), 503),
        (UnsupportedError("x"), 501),
        (CancelledError("x"), 400),
    ],
)
def test_an_error_as_first_response_sets_the_status(
    core: Any, client: httpx.Client, path: str, error: Any, status: int
) -> None:
    core.responses = [(_answer(error=error), True)]
    response = client.post(path, content=_BODY)
    assert response.status_code == status
    if path == _PATH:
        assert (response.headers["content-type"], response.json()) == (_JSON, {"error": "x"})
    else:
        assert (response.headers["content-type"], response.text) == (_EVENTS, 'data: {"error":"x"}\n\n')


@pytest.mark.parametrize("path", [_PATH, _STREAM])
def test_a_request_that_is_not_let_in_has_a_plain_answer(core: Any, client: httpx.Client, path: str) -> None:
    def submit(request: InferRequest) -> None:
        request.send(_answer(error=UnavailableError("Exceeds maximum queue size")), True)

    core.submit = submit
    response = client.post(path, content=_BODY)
    assert (response.status_code, response.headers["content-type"]) == (503, _JSON)
    assert response.json() == {"error": "Exceeds maximum queue size"}


def test_a_later_error_is_an_event_under_the_first_responses_status(core: Any, client: httpx.Client) -> None:
    core.responses = [(_answer(b"a"), False), (_answer(error=InternalError("x")), True)]
    response = client.post(_STREAM, content=_BODY)
    assert (response.status_code, response.headers["content-type"]) == (200, _EVENTS)
    assert response.text.endswith('\n\ndata: {"error":"x"}\n\n')


def test_an_empty_end_adds_no_event(core: Any, client: httpx.Client) -> None:
    core.responses = [(_answer(b"a"), False), (_answer(b"b"), False), (None, True)]
    events = client.post(_STREAM, content=_BODY).text.split("\n\n")
    assert [json.loads(e.removeprefix("data: "))["OUTPUT0"] for e in events[:-1]] == ["a", "b"]
    assert events[-1] == ""
    core.responses = [(None, True)]
    assert client.post(_STREAM, content=_BODY).text == ""


def test_an_output_that_json_cannot_carry_is_an_error(core: Any, client: httpx.Client) -> None:
    core.responses = [(InferResponse("str", "1", "", {"H": Tensor.of(np.zeros(2, np.float16))}), True)]
    for path in (_PATH, _STREAM):
        response = client.post(path, content=_BODY)
        assert response.status_code == 400
        assert "sending FP16 data via JSON is not supported" in response.text


@pytest.mark.parametrize("path", [_PATH, _STREAM])
@pytest.mark.parametrize(
    ("body", "headers", "status", "text"),
    [
        (_BODY, {"Content-Encoding": "gzip"}, 400, "Unsupported content-encoding, only 'identity' is supported."),
        ("{", {}, 500, "failed to parse the request JSON buffer"),
        ('{"INPUT0": 1}', {}, 500, "attempt to access JSON non-string as string"),
        ('{"p": null}', {}, 400, "parameter 'p' has invalid type"),
    ],
)
def test_errors_before_inference_are_json_on_both_routes(
    client: httpx.Client, path: str, body: str, headers: dict[str, str], status: int, text: str
) -> None:
    response = client.post(path, content=body, headers=headers)
    assert (response.status_code, response.headers["content-type"]) == (status, _JSON)
    assert text in response.json()["error"]


@pytest.mark.parametrize("route", ["generate", "generate_stream"])
def test_other_methods_and_models_are_refused(client: httpx.Client, route: str) -> None:
    response = client.get(f"/v2/models/str/{route}")
    assert (response.status_code, response.json()) == (405, {"error": "Method Not Allowed"})
    response = client.post(f"/v2/models/nosuch/{route}", content="{")
    assert (response.status_code, "unknown model: 'nosuch'" in response.json()["error"]) == (404, True)


def test_identity_is_an_encoding(client: httpx.Client) -> None:
    assert client.post(_PATH, content=_BODY, headers={"Content-Encoding": "identity"}).status_code == 200


def test_a_body_over_the_limit_is_refused(start: Any) -> None:
    host, port = start(max_body=100).bind()
    response = httpx.post(f"http://{host}:{port}{_PATH}", content=" " * 101)
    assert response.json()["error"] == (
        "request JSON size of 101 bytes exceeds the maximum allowed input size of 100 bytes. Use --http-max-input-size "
        "to increase the limit."
    )


@pytest.fixture
def asked(core: Any, monkeypatch: pytest.MonkeyPatch) -> list[InferRequest]:
    """What reaches the core, which answers nothing: the test does."""
    requests: list[InferRequest] = []
    monkeypatch.setattr(core, "submit", requests.append)
    return requests


def _next_event(lines: Iterator[str]) -> Any:
    event = next(lines)
    assert next(lines) == ""
    return json.loads(event.removeprefix("data: "))


def test_every_event_is_sent_when_it_comes(client: httpx.Client, asked: list[InferRequest], core: Any) -> None:
    def submit(request: InferRequest) -> None:
        asked.append(request)
        request.send(_answer(b"0"), False)

    core.submit = submit
    with client.stream("POST", _STREAM, content=_BODY) as response:
        lines = response.iter_lines()
        sender = asked[0]
        for number in range(1, 5):
            assert _next_event(lines)["OUTPUT0"] == str(number - 1)  # before the next one exists
            sender.send(_answer(b"%d" % number), number == 4)
        assert _next_event(lines)["OUTPUT0"] == "4"
        assert list(lines) == []
    assert client.get("/v2/health/live").status_code == 200  # on the same connection


def test_a_client_of_http_1_0_gets_the_events_without_chunks(core: Any, connect: Any) -> None:
    core.responses = [(_answer(b"a"), False), (None, True)]
    with connect() as connection:
        connection.sendall(b"POST %b HTTP/1.0\r\nContent-Length: 15\r\n\r\n%b" % (_STREAM.encode(), _BODY.encode()))
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert body == b'data: {"model_name":"str","model_version":"1","OUTPUT0":"a"}\n\n'


def test_a_client_that_does_not_read_is_given_up(
    connect: Any, client: httpx.Client, asked: list[InferRequest], core: Any
) -> None:
    arrived = threading.Event()

    def submit(request: InferRequest) -> None:
        asked.append(request)
        arrived.set()

    core.submit = submit
    with connect() as connection:
        head = f"POST {_STREAM} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(_BODY)}\r\n\r\n{_BODY}"
        connection.sendall(head.encode())
        assert arrived.wait(60)
        sender = asked[0]
        big = _answer(b"x" * (1 << 20))
        for _ in range(128):
            sender.send(big, False)
        received = 0
        with contextlib.suppress(ConnectionResetError):
            while piece := connection.recv(1 << 20):
                received += len(piece)
    assert received < 100 << 20
    assert client.get("/v2/health/live").status_code == 200
    assert asked[0].cancelled
    sender.send(None, True)


# The load of language models in a header, for load balancers.


_ASKED = "endpoint-load-metrics-format"
_TOLD = "endpoint-load-metrics"


@pytest.fixture
def cache_blocks() -> Iterator[dict[str, Any]]:
    """The gauges that a language model makes: a quarter of 80 blocks of 64 tokens is in use."""
    family = REGISTRY.family("nv_trt_llm_kv_cache_block_metrics", "blocks of the cache", MetricKind.GAUGE)
    made = {}
    for kind, value in {"used": 20, "max": 80, "tokens_per": 64}.items():
        made[kind] = family.add({"kv_cache_block_type": kind, "model": "m", "version": "1"})
        made[kind].set(value)
    yield made
    for metric in made.values():
        family.remove(metric)
    REGISTRY.release(family)


@pytest.mark.parametrize("route", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    ("form", "told"),
    [
        ("text", "TEXT named_metrics.kv_cache_utilization=0.250000, named_metrics.max_token_capacity=5120"),
        ("json", 'JSON {"named_metrics":{"kv_cache_utilization":0.25,"max_token_capacity":5120}}'),
        ("xml", None),
        (None, None),
    ],
)
def test_the_report_is_in_the_form_that_is_asked_for(
    client: httpx.Client, cache_blocks: dict[str, Any], route: str, form: str | None, told: str | None
) -> None:
    headers = {} if form is None else {_ASKED: form}
    response = client.post(f"/v2/models/str/{route}", json={"INPUT0": ["a"]}, headers=headers)
    assert response.status_code == 200
    assert response.headers.get(_TOLD) == told


def test_a_cache_without_blocks_is_not_in_use(client: httpx.Client, cache_blocks: dict[str, Any]) -> None:
    cache_blocks["max"].set(0)
    response = client.post("/v2/models/str/generate", json={"INPUT0": ["a"]}, headers={_ASKED: "json"})
    assert response.headers[_TOLD] == 'JSON {"named_metrics":{"kv_cache_utilization":0.0,"max_token_capacity":0}}'


def test_without_such_a_model_there_is_no_report(client: httpx.Client) -> None:
    response = client.post("/v2/models/str/generate", json={"INPUT0": ["a"]}, headers={_ASKED: "json"})
    assert (response.status_code, response.headers.get(_TOLD)) == (200, None)


# generate and generate_stream in front of the real core and models in Python.


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
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    repository = tmp_path_factory.mktemp("repository")
    _write(repository, "echo", _MODEL, "max_batch_size: 4" + _INPUTS)
    _write(repository, "many", _DECOUPLED, "model_transaction_policy { decoupled: true }" + _INPUTS)
    _write(repository, "two", _MODEL, _INPUTS.replace(" optional: true", ""))
    core = ServingCore(CoreOptions(repositories=(str(repository),)))
    core.start()
    front = HttpFrontend(Endpoint(port=0), api_service(Served(core)))
    front.start()
    host, port = front.bind()
    with httpx.Client(base_url=f"http://{host}:{port}/v2/models", timeout=60) as python:
        yield python
    front.stop()
    core.stop()


def _events(response: httpx.Response) -> list[Any]:
    return [json.loads(event.removeprefix("data: ")) for event in response.text.split("\n\n")[:-1]]


def test_one_text_in_and_one_text_out(python: httpx.Client) -> None:
    answer = python.post("/echo/generate", json={"TEXT": "hello", "id": "r9"}).json()
    assert answer == {"id": "r9", "model_name": "echo", "model_version": "1", "OUT": "hello"}


def test_several_texts_are_one_row_of_a_batch(python: httpx.Client) -> None:
    assert python.post("/echo/generate", json={"TEXT": ["a", "b"]}).json()["OUT"] == ["a", "b"]


def test_a_model_that_answers_once_can_be_streamed(python: httpx.Client) -> None:
    assert [event["OUT"] for event in _events(python.post("/echo/generate_stream", json={"TEXT": "x"}))] == ["x"]


def test_a_decoupled_model_answers_as_often_as_it_likes(python: httpx.Client) -> None:
    for times in (0, 1, 5):
        response = python.post("/many/generate_stream", json={"TEXT": "x", "parameters": {"TIMES": times}})
        assert response.status_code == 200
        assert [event["OUT"] for event in _events(response)] == ["x"] * times


@pytest.mark.parametrize("times", [0, 2])
def test_a_decoupled_model_must_answer_once_without_a_stream(python: httpx.Client, times: int) -> None:
    response = python.post("/many/generate", json={"TEXT": "x", "TIMES": times})
    assert response.status_code == 500
    assert "exactly 1 response" in response.json()["error"]
    assert python.post("/many/generate", json={"TEXT": "x"}).json()["OUT"] == "x"


def test_a_decoupled_model_is_not_for_the_plain_route(python: httpx.Client) -> None:
    # As a stock Triton 2.51 answers, whatever the model would do with the request.
    tensor = {"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["x"]}
    response = python.post("/many/infer", json={"inputs": [tensor]})
    assert response.status_code == 501
    assert response.json() == {"error": "HTTP end point doesn't support models with decoupled transaction policy"}


def test_a_failure_at_first_is_500_and_a_later_one_is_an_event(python: httpx.Client) -> None:
    body = {"TEXT": "x", "TIMES": 0, "fail_last": True}
    response = python.post("/many/generate_stream", json=body)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (response.status_code, _events(response)) == (500, [{"error": "the last one failed"}])
    response = python.post("/many/generate_stream", json={**body, "TIMES": 1})
    assert response.status_code == 200
    assert _events(response)[1] == {"error": "the last one failed"}
    response = python.post("/many/generate", json=body)
    assert (response.status_code, response.json()) == (500, {"error": "the last one failed"})


@pytest.mark.parametrize(("text", "status", "reason"), [("raise", 500, "no such text"), ("refuse", 503, "refused")])
def test_the_failure_of_a_model_that_answers_once_is_an_event(
    python: httpx.Client, text: str, status: int, reason: str
) -> None:
    response = python.post("/echo/generate_stream", json={"TEXT": text})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.status_code == status
    assert [reason in event["error"] for event in _events(response)] == [True]
    response = python.post("/echo/generate", json={"TEXT": text})
    assert (response.status_code, response.headers["content-type"]) == (status, "application/json")
    assert reason in response.json()["error"]


def test_missing_inputs_are_named(python: httpx.Client) -> None:
    for route in ("generate", "generate_stream"):
        response = python.post(f"/many/{route}", json={"id": "r"})
        assert response.status_code == 400
        assert response.json()["error"] == (
            "[request id: r] expected number of inputs between 1 and 2 but got 0 inputs for model 'many'. Got input(s) "
            "[], but missing required input(s) ['TEXT']. Please provide all required input(s)."
        )
        response = python.post(f"/two/{route}", json={"TEXT": "a"})
        assert response.json()["error"] == (
            "[request id: <id_unknown>] expected 2 inputs but got 1 inputs for model 'two'. Got input(s) ['TEXT'], but "
            "missing required input(s) ['TIMES']. Please provide all required input(s)."
        )


def test_a_client_that_leaves_has_its_request_cancelled(python: httpx.Client, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with python.stream("POST", "/many/generate_stream", json={"TEXT": "x", "pipe": str(pipe)}) as response:
        # The server notices it once the client's system has forgotten the socket: after a second, not after a minute.
        own = response.extensions["network_stream"].get_extra_info("socket")
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_LINGER2, 1)
        assert next(response.iter_lines()).startswith("data: ")
    assert pipe.read_text() == "cancelled"
