"""The same bytes in, the same status and body out as a stock Triton.

``../data/triton_2_51.json`` was recorded from Triton 2.51.0 (the 24.10 release) with three Python models that return
what they are given: "ident" (FP32 [-1], batches of up to 8), "str" (BYTES [-1]) and "addsub" (two FP32 [4]).
"""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from repoagent_server.handlers.inference import Served
from repoagent_server.http.api import api_service
from repoagent_server.http.frontend import Endpoint, HttpFrontend

from repoagent.serving.core import ServingCore
from server_stub.tests.cores import every_model

_CASES: Final[list[dict[str, Any]]] = json.loads((Path(__file__).parents[1] / "data" / "triton_2_51.json").read_text())

_IDENTITY: Final = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]) for array in inputs]
"""
_ADD_SUB: Final = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            a, b = (pb_utils.get_input_tensor_by_name(request, f"INPUT{i}").as_numpy() for i in range(2))
            outputs = [pb_utils.Tensor("OUTPUT0", a + b), pb_utils.Tensor("OUTPUT1", a - b)]
            wanted = request.requested_output_names()
            responses.append(pb_utils.InferenceResponse([o for o in outputs if o.name() in wanted]))
        return responses
"""


def _config(data_type: str, dims: str, count: int = 1, batch: int = 0) -> str:
    lines = ['backend: "python"', f"max_batch_size: {batch}"]
    for kind in ("input", "output"):
        names = [f"{kind.upper()}{number}" for number in range(count)]
        lines += [f'{kind} {{ name: "{name}" data_type: {data_type} dims: {dims} }}' for name in names]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    folder = tmp_path_factory.mktemp("conformance")
    for name, code, config in (
        ("ident", _IDENTITY, _config("TYPE_FP32", "[-1]", batch=8)),
        ("str", _IDENTITY, _config("TYPE_STRING", "[-1]")),
        ("addsub", _ADD_SUB, _config("TYPE_FP32", "[4]", 2)),
    ):
        model = folder / "models" / name
        (model / "1").mkdir(parents=True)
        (model / "1" / "model.py").write_text(code)
        (model / "config.pbtxt").write_text(config)
    with ServingCore(every_model(folder)) as core:
        front = HttpFrontend(Endpoint(port=0), api_service(Served(core, allow_load_parameters=True)))
        front.start()
        yield front.bind()
        front.stop()


# What is answered differently on purpose; docs/reference/http.md has the list.
_DIFFERENT: Final = {
    "index badready": "Unable to parse 'ready': attempt to access JSON non-boolean as boolean",  # 400, as 2.73 has it
    "out dup": "[request id: <id_unknown>] output 'OUTPUT0' already exists in request",  # as 2.73 has it
    "load unk": "failed to load 'unk', failed to poll from model repository: model not found in any model repository",
    "shape empty": "Unable to parse 'data': Shape does not match true shape of 'data' field",
    "batch 0": None,
    "extra input": "[request id: <id_unknown>] expected 1 inputs but got 2 inputs for model 'ident'. Got input(s) "
    "['INPUT0','X'], but missing required input(s) []. Please provide all required input(s).",
}


def _ask(case: dict[str, Any], address: tuple[str, int]) -> tuple[int, str, str | None]:
    connection = http.client.HTTPConnection(*address, timeout=60)
    try:
        connection.request(case["method"], case["path"], case["body"].encode("latin-1"), case["headers"])
        response = connection.getresponse()
        body = response.read().decode("latin-1")
    finally:
        connection.close()
    return response.status, body, response.getheader("Inference-Header-Content-Length")


@pytest.mark.parametrize(
    "case", [c for c in _CASES if c["name"] not in _DIFFERENT], ids=lambda case: case["name"].replace(" ", "-")
)
def test_answers_as_triton_does(case: dict[str, Any], address: tuple[str, int]) -> None:
    assert _ask(case, address) == (case["status"], case["response"], case["header_length"])


@pytest.mark.parametrize("case", [c for c in _CASES if c["name"] in _DIFFERENT], ids=lambda case: case["name"])
def test_answers_otherwise_only_where_the_documentation_says_so(case: dict[str, Any], address: tuple[str, int]) -> None:
    status, body, _ = _ask(case, address)
    expected = _DIFFERENT[case["name"]]
    if expected is None:
        assert status == 200
    else:
        assert (400 <= status <= 500, json.loads(body)) == (True, {"error": expected})
