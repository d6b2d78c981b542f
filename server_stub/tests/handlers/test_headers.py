"""Headers that become parameters which a Python model reads."""

import json
import queue
from collections.abc import Iterator
from typing import Any, Final

import click
import httpx
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from repoagent_server import KServeGrpc, KServeHttp, asgi_app
from repoagent_server.handlers.headers import HeaderForwarding

from repoagent.errors import InvalidArgumentError
from repoagent.server import Server

_PATTERN: Final = "my-.*|x_[ab]"
_MODEL: Final = """
import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        texts = [np.array([request.parameters()], object) for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", text)]) for text in texts]
"""
_CONFIG: Final = """
backend: "python"
input { name: "INPUT0" data_type: TYPE_FP32 dims: [-1] }
output { name: "OUTPUT0" data_type: TYPE_STRING dims: [-1] }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With one model, "params", which answers with the parameters of the request."""
    repository = tmp_path_factory.mktemp("repository")
    (repository / "params" / "1").mkdir(parents=True)
    (repository / "params" / "1" / "model.py").write_text(_MODEL)
    (repository / "params" / "config.pbtxt").write_text(_CONFIG)
    with Server(model_repository=str(repository)) as server:
        yield server


@pytest.fixture(scope="module")
def http_address(server: Server) -> Iterator[str]:
    with KServeHttp(server, KServeHttp.Options(port=0, header_forward_pattern=_PATTERN)) as front:
        yield "{}:{}".format(*front.address)


@pytest.fixture(scope="module")
def grpc_address(server: Server) -> Iterator[str]:
    with KServeGrpc(server, KServeGrpc.Options(port=0, forward_header_pattern=_PATTERN)) as front:
        yield "{}:{}".format(*front.address)


def _input(library: Any) -> Any:
    made = library.InferInput("INPUT0", [1], "FP32")
    made.set_data_from_numpy(np.zeros(1, np.float32))
    return made


def _parameters(result: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.as_numpy("OUTPUT0")[0])
    return found


def test_matching_headers_reach_the_model_over_http_as_in_triton(http_address: str) -> None:
    headers = {"my-a": "1", "other": "2", "My-B": "x y", "x_a": "1", "x_abc": "4", "amy-x": "3", "X_B": "q"}
    with tritonclient.http.InferenceServerClient(http_address) as client:
        result = client.infer("params", [_input(tritonclient.http)], headers=headers, parameters={"my-a": 5, "n": 2})
    # What a stock Triton 2.51 gave its model; there the parameter of the body comes first, under the same name.
    assert _parameters(result) == {
        "my-a": "1",
        "My-B": "x y",
        "x_a": "1",
        "x_abc": "4",
        "amy-x": "3",
        "X_B": "q",
        "n": 2,
    }


@pytest.mark.parametrize("route", ["generate", "generate_stream"])
def test_matching_headers_reach_the_model_through_generate(http_address: str, route: str) -> None:
    url = f"http://{http_address}/v2/models/params/{route}"
    response = httpx.post(url, json={"INPUT0": [1], "n": 2}, headers={"my-a": "1", "other": "2"})
    answer = json.loads(response.text.removeprefix("data: "))
    assert json.loads(answer["OUTPUT0"]) == {"n": 2, "my-a": "1"}


def test_matching_headers_reach_the_model_through_a_table(http_address: str) -> None:
    url = f"http://{http_address}/v2/models/params/invocations"
    response = httpx.post(url, json={"inputs": [1], "params": {"n": 2}}, headers={"my-a": "1", "other": "2"})
    assert [json.loads(text) for text in response.json()["predictions"]] == [{"n": 2, "my-a": "1"}]


def test_bytes_that_are_no_text_do_not_hurt(http_address: str) -> None:
    url = f"http://{http_address}/v2/models/params/generate"
    response = httpx.post(url, json={"INPUT0": [1]}, headers=[(b"my-a", b"caf\xe9"), (b"my-b", "café".encode())])
    parameters = json.loads(json.loads(response.content)["OUTPUT0"])
    assert parameters == {"my-a": "caf\udce9", "my-b": "café"}


def test_matching_metadata_reach_the_model_over_grpc(grpc_address: str) -> None:
    headers = {"my-a": "1", "other": "2", "x_a": "1", "x_abc": "2", "my-b-bin": b"\xc3\xa9"}
    with tritonclient.grpc.InferenceServerClient(grpc_address) as client:
        result = client.infer("params", [_input(tritonclient.grpc)], headers=headers, parameters={"my-a": 5, "n": 2})
    assert _parameters(result) == {"my-a": "1", "x_a": "1", "x_abc": "2", "my-b-bin": "é", "n": 2}


def test_the_metadata_of_a_stream_come_with_each_of_its_requests(grpc_address: str) -> None:
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with tritonclient.grpc.InferenceServerClient(grpc_address) as client:
        client.start_stream(lambda result, error: answers.put(error or _parameters(result)), headers={"my-a": "1"})
        for number in range(2):
            client.async_stream_infer("params", [_input(tritonclient.grpc)], parameters={"n": number})
        assert [answers.get(timeout=60) for _ in range(2)] == [{"my-a": "1", "n": 0}, {"my-a": "1", "n": 1}]


def test_without_a_pattern_no_header_reaches_the_model(server: Server) -> None:
    with KServeHttp(server, KServeHttp.Options(port=0)) as front:
        url = "http://{}:{}/v2/models/params/generate".format(*front.address)
        assert httpx.post(url, json={"INPUT0": [1]}, headers={"my-a": "1"}).json()["OUTPUT0"] == "{}"


@pytest.mark.parametrize("flag", ["--http-header-forward-pattern", "--grpc-header-forward-pattern"])
def test_a_pattern_is_checked_when_it_is_given(parse: Any, flag: str) -> None:
    options = parse(f"{flag}=x-.*")
    assert "x-.*" in (options.http_header_forward_pattern, options.grpc.forward_header_pattern)
    with pytest.raises(click.UsageError, match="not a regular expression for names of headers"):
        parse(f"{flag}=[")


def test_an_embedder_is_told_of_a_bad_pattern(server: Server) -> None:
    with pytest.raises(InvalidArgumentError, match="not a regular expression"):
        KServeHttp(server, KServeHttp.Options(port=0, header_forward_pattern="(")).start()
    with pytest.raises(InvalidArgumentError, match="not a regular expression"):
        KServeGrpc(server, KServeGrpc.Options(port=0, forward_header_pattern="(")).start()
    with pytest.raises(InvalidArgumentError, match="not a regular expression"):
        asgi_app(server, forward_headers="(")


@pytest.mark.parametrize(("pattern", "chosen"), [("(?-i)X.*", ["X-A"]), ("X.*", ["X-A", "x-b"]), ("(?-i)x.*", ["x-b"])])
def test_an_expression_can_ask_for_the_case_of_letters(pattern: str, chosen: list[str]) -> None:
    """F15: the form that Triton documents."""
    assert list(HeaderForwarding(pattern).chosen([("X-A", "1"), ("x-b", "2"), ("a", "3")])) == chosen
