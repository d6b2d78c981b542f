"""generate and generate_stream over the tests' core: how many responses, their form, and errors around them."""

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from repoagent.errors import CancelledError, InternalError, NotFoundError, UnavailableError, UnsupportedError
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
