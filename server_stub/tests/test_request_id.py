"""``x-request-id`` of a client comes back with every kind of answer, and reaches the core for logs and traces."""

import logging
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from repoagent_server.grpc.frontend import GrpcFrontend
from repoagent_server.handlers.inference import Served
from repoagent_server.shared.grpc_options import GrpcOptions
from tritonclient.grpc import service_pb2, service_pb2_grpc

_ID = "01JD-b3f:9/tenant=a+1"
_ONE = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
_HEADERS = {"X-Request-Id": _ID}


def test_every_answer_over_http_has_it(core: Any, client: httpx.Client) -> None:
    answers = [
        client.get("/v2/health/live", headers=_HEADERS),
        client.post("/v2/models/ident/infer", json=_ONE, headers=_HEADERS),
        client.post("/v2/models/ident/infer", json=_ONE, headers=_HEADERS),  # a head that has been seen
        client.post("/v2/models/none/infer", json=_ONE, headers=_HEADERS),
        client.get("/nowhere", headers=_HEADERS),
        client.post("/v2/models/ident/infer", content=b"{", headers=_HEADERS),
        client.head("/v2/health/live", headers=_HEADERS),
        client.post("/v2/models/str/generate", json={"INPUT0": "a"}, headers=_HEADERS),
        client.post("/v2/models/str/generate_stream", json={"INPUT0": "a"}, headers=_HEADERS),
    ]
    assert [answer.headers.get("x-request-id") for answer in answers] == [_ID] * len(answers)
    assert [request.call_id for request in core.requests] == [_ID] * 4


def test_without_one_there_is_none(core: Any, client: httpx.Client) -> None:
    assert "x-request-id" not in client.post("/v2/models/ident/infer", json=_ONE).headers
    assert core.requests[0].call_id == ""


@pytest.mark.parametrize("value", ["", "a b", "a\tb", "x" * 129, "gr\u00fc\u00df"])
def test_one_that_is_not_valid_is_ignored(core: Any, client: httpx.Client, value: str) -> None:
    answer = client.post("/v2/models/ident/infer", json=_ONE, headers={b"x-request-id": value.encode("latin-1")})
    assert answer.status_code == 200
    assert "x-request-id" not in answer.headers
    assert core.requests[0].call_id == ""


def test_each_request_of_a_connection_has_its_own(client: httpx.Client) -> None:
    for name in ("one", None, "two", "one"):
        answer = client.get("/v2/health/live", headers={} if name is None else {"x-request-id": name})
        assert answer.headers.get("x-request-id") == name


def test_the_log_of_a_fault_names_it(core: Any, client: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> bool:
        raise RuntimeError("broken")

    core.ready = fail
    with caplog.at_level(logging.ERROR):
        assert client.get("/v2/health/ready", headers=_HEADERS).status_code == 500
    assert f"GET /v2/health/ready (x-request-id {_ID})" in caplog.text


@pytest.fixture
def stub(core: Any) -> Iterator[Any]:
    frontend = GrpcFrontend(Served(core), GrpcOptions(port=0))
    frontend.start()
    with grpc.insecure_channel(f"127.0.0.1:{frontend.bind()[1]}") as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)
    frontend.stop()


def _message(model: str = "ident", size: int = 2) -> Any:
    message = service_pb2.ModelInferRequest(model_name=model)
    tensor = message.inputs.add(name="INPUT0", datatype="FP32")
    tensor.shape.extend([1, size])
    message.raw_input_contents.append(np.ones((1, size), np.float32).tobytes())
    return message


def _initial(call: Any) -> str | None:
    found = [value for key, value in call.initial_metadata() if key == "x-request-id"]
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize("name", [_ID, None])
def test_every_call_over_grpc_has_it_in_its_first_metadata(core: Any, stub: Any, name: str | None) -> None:
    metadata = () if name is None else (("x-request-id", name),)
    live = service_pb2.ServerLiveRequest()
    for method, message in (
        (stub.ServerLive, live),
        (stub.ModelInfer, _message()),
        (stub.ModelInfer, _message(size=100_000)),
    ):
        _, call = method.with_call(message, metadata=metadata)
        assert _initial(call) == name
    _, call = stub.ModelInfer.with_call(_message(), metadata=metadata, timeout=60)
    assert _initial(call) == name
    stream = stub.ModelStreamInfer(iter([_message()]), metadata=metadata)
    assert _initial(stream) == name
    list(stream)
    with pytest.raises(grpc.RpcError) as refused:
        stub.ModelInfer(_message("none"), metadata=metadata)
    fields = dict([*(refused.value.initial_metadata() or ()), *(refused.value.trailing_metadata() or ())])
    assert fields.get("x-request-id") == name
    assert [request.call_id for request in core.requests] == [name or ""] * 4


def test_one_that_is_not_valid_is_ignored_over_grpc(core: Any, stub: Any) -> None:
    _, call = stub.ModelInfer.with_call(_message(), metadata=(("x-request-id", "a b"),))
    assert _initial(call) is None
    assert core.requests[0].call_id == ""
