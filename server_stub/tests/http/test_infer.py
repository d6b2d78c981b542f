"""The rule of one response per request, and what else only a core can provoke."""

import json
from typing import Any

import httpx
import numpy as np
import pytest

from repoagent.errors import CancelledError, InternalError, UnavailableError
from repoagent.serving.requests.request import InferResponse
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
