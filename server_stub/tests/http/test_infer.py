"""The rule of one response per request, and what else only a core can provoke."""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import httpx
import numpy as np
import pytest
from repoagent_server.handlers.inference import Inference, Mailbox, Served
from repoagent_server.http.body import DEFAULT_MAX_BODY
from repoagent_server.http.compression import CodedBodies
from repoagent_server.http.infer import InferRoute
from repoagent_server.http.long_work import LongWork
from repoagent_server.http.messages import Frame, Request, Response
from repoagent_server.http.openai_answers import Group

from repoagent.errors import CancelledError, InternalError, UnavailableError
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.requests.tensor import Tensor

_PATH = "/v2/models/ident/infer"
_BODY = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,2],"data":[1,2]}]}'


def _answer(**members: Any) -> InferResponse:
    return InferResponse("ident", "1", "", {"OUTPUT0": Tensor.of(np.zeros(1, np.float32))}, **members)


@pytest.mark.parametrize(
    "responses",
    [[(None, True)], [(_answer(), False), (_answer(), True)], [(_answer(), False)] * 3 + [(None, True)]],
)
def test_any_other_number_of_responses_than_one_is_an_error(core: Any, client: httpx.Client, responses: Any) -> None:
    core.responses = responses
    response = client.post(_PATH, content=_BODY)
    assert response.status_code == 501
    text = "HTTP end point doesn't support models with decoupled transaction policy"
    assert response.json() == {"error": text}


def test_one_response_and_an_empty_end_are_one_response(core: Any, client: httpx.Client) -> None:
    core.responses = [(_answer(), False), (None, True)]
    assert client.post(_PATH, content=_BODY).status_code == 200


@pytest.mark.parametrize(
    ("error", "status"), [(InternalError("a"), 500), (UnavailableError("b"), 503), (CancelledError("c"), 400)]
)
def test_an_error_of_the_model_has_the_status_of_its_code(
    core: Any, client: httpx.Client, error: Any, status: int
) -> None:
    core.responses = [(_answer(error=error), True)]
    response = client.post(_PATH, content=_BODY)
    assert (response.status_code, response.json()) == (status, {"error": str(error)})


def test_an_answer_from_another_thread_arrives(core: Any, client: httpx.Client) -> None:
    core.gate.set()
    response = client.post("/v2/models/slow/infer", content=_BODY)
    assert response.json()["outputs"][0]["data"] == [1.0, 2.0]


def test_a_fault_of_ours_is_an_answer_too_without_its_details(
    core: Any, client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    def run(_: Any) -> Any:
        raise ZeroDivisionError("secret of the inside")

    core.models["ident"].run = run
    response = client.post(_PATH, content=_BODY)
    assert response.status_code == 500
    assert response.json() == {"error": "unexpected ZeroDivisionError; the server's log has the details"}
    assert "secret of the inside" in caplog.text


def test_parameters_of_the_response_are_passed_on(core: Any, client: httpx.Client) -> None:
    core.responses = [(_answer(parameters={"a": 1, "b": True, "c": 0.5, "d": "x"}), True)]
    assert json.loads(client.post(_PATH, content=_BODY).content)["parameters"] == {
        "a": 1,
        "b": True,
        "c": 0.5,
        "d": "x",
    }


@pytest.mark.parametrize("path", ["infer", "generate", "generate_stream"])
def test_an_answer_that_cannot_be_written_is_a_fault_and_not_silence(
    core: Any, client: httpx.Client, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    output: Any = "no tensor"
    core.responses = [(InferResponse("str", "1", outputs={"OUTPUT0": output}), True)]
    tensor = {"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": ["x"]}
    body = {"inputs": [tensor]} if path == "infer" else {"INPUT0": ["x"]}
    response = client.post(f"/v2/models/str/{path}", json=body)
    assert response.status_code == 500
    assert "unexpected AttributeError; the server's log has the details" in response.text
    assert "could not be written: 'str' object has no attribute" in caplog.text


# Requests that come in one turn of the event loop do not disturb each other.

_ANSWER = b'"data":[1.0,2.0]'


class _Exchange:
    def __init__(self, log: list[str], answered: Callable[[], None] = lambda: None) -> None:
        self.log = log
        self.answered = answered
        self.on_cancel: Callable[[], None] | None = None
        self.on_behind: Callable[[bool], None] | None = None
        self.response: Response | None = None

    def respond(self, response: Response) -> None:
        assert self.response is None
        self.response = response
        self.log.append("answered")
        self.answered()

    def begin(self, head: Response) -> None:
        raise AssertionError(head)

    def write(self, piece: bytes) -> None:
        raise AssertionError(piece)

    def end(self) -> None:
        raise AssertionError


@pytest.fixture
def log(core: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happened, in order."""
    log: list[str] = []
    submit = core.submit

    def logged(request: InferRequest) -> None:
        log.append("submitted")
        submit(request)

    monkeypatch.setattr(core, "submit", logged)
    return log


def _route(core: Any) -> InferRoute:
    loop = asyncio.get_running_loop()
    long, inference = LongWork(loop, ThreadPoolExecutor(1)), Inference(Served(core), Mailbox(loop))
    return InferRoute(inference, long, CodedBodies(long, DEFAULT_MAX_BODY, inference.reserve))


def _send(
    route: InferRoute, exchange: _Exchange, body: bytes = _BODY, model: str = "ident", alone: bool = False
) -> None:
    request = Request(b"POST", b"/v2/models/%b/infer" % model.encode(), [], Frame(len(body)), body, alone)
    route(request, {"model": model, "version": ""}, exchange)


async def test_one_that_is_wrong_does_not_touch_the_others(
    core: Any, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    route, exchanges = _route(core), [_Exchange(log) for _ in range(4)]
    submit = core.submit

    def broken(request: InferRequest) -> None:
        if request.model_name == "str":
            raise ZeroDivisionError
        submit(request)

    monkeypatch.setattr(core, "submit", broken)
    for exchange, body, model in zip(
        exchanges, (_BODY, b"garbage", _BODY, _BODY), ("ident", "ident", "str", "ident"), strict=True
    ):
        _send(route, exchange, body, model)
    await asyncio.sleep(0)
    statuses = [exchange.response.status for exchange in exchanges if exchange.response]
    assert statuses == [200, 500, 500, 200]


def test_an_answer_names_the_receipt_of_what_answered(core: Any, client: httpx.Client) -> None:
    core.responses = [(_answer(receipt="sha256:0a"), True)]
    assert client.post(_PATH, content=_BODY).headers["repoagent-attestation"] == "sha256:0a"
    core.responses = [(_answer(), True)]
    assert "repoagent-attestation" not in client.post(_PATH, content=_BODY).headers


def test_an_answer_of_several_requests_names_the_receipts_of_all_loads() -> None:
    group = Group(*cast(Any, [None] * 3))
    group._take = lambda *_: None  # type: ignore[method-assign]
    for number, receipt in enumerate(("sha256:0a", "", "sha256:0b", "sha256:0a")):
        group.deliver(number, _answer(receipt=receipt), True)
    assert group.served is not None
    assert group.served.receipt == "sha256:0a, sha256:0b"
