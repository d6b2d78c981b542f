"""Requests that are let in, and then ask for more than their client may: reported as denied, once, with all that joins
the line with a proxy's log. Not as loads that were refused: nobody tried to load anything."""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc
import httpx
import pytest
from repoagent_server.codec.long_json import LONG_JSON
from tritonclient.grpc import service_pb2, service_pb2_grpc

from server_stub.tests.access.conftest import Guarded

HEADERS: Final = {"x-api-key": "eu-key", "x-request-id": "r-1"}
MODEL: Final = "fraud-eu"
REGION: Final = {"shared_memory_region": "others", "shared_memory_byte_size": 4}
CONFIG: Final = {"parameters": {"config": "{}"}}
DEPENDENTS: Final = {"parameters": {"unload_dependents": True}}


def _shared(values: int = 0) -> dict[str, Any]:
    """A request that names a region, after an input of so many values."""
    named = {"name": "INPUT1", "datatype": "FP32", "shape": [1, 1], "parameters": REGION}
    long = {"name": "INPUT0", "datatype": "FP32", "shape": [1, values], "data": [0.0] * values}
    return {"inputs": [long, named] if values else [named]}


def _check(guarded: Guarded, protocol: str, right: str) -> None:
    (event,) = guarded.denied
    assert (event.client, event.right, event.protocol, event.request) == ("eu", right, protocol, "r-1")
    assert event.address.startswith("127.0.0.1:")
    assert [line for line in guarded.audited() if line["result"] == "refused"] == []


@pytest.fixture(autouse=True)
def _forget(guarded: Guarded) -> None:
    guarded.denied.clear()


@pytest.mark.parametrize(
    ("path", "body", "right"),
    [
        (f"/v2/repository/models/{MODEL}/load", CONFIG, "manage"),
        (f"/v2/repository/models/{MODEL}/unload", DEPENDENTS, "manage"),
        (f"/v2/models/{MODEL}/infer", _shared(), "manage"),
        (f"/v2/models/{MODEL}/infer", _shared(LONG_JSON // 4), "manage"),
        ("/v1/completions", {"model": "shared", "prompt": "x"}, "infer"),
    ],
    ids=["load", "unload", "region", "region in a long request", "model in a body"],
)
def test_over_http(guarded: Guarded, path: str, body: dict[str, Any], right: str) -> None:
    answer = httpx.post(guarded.http + path, json=body, headers=HEADERS, timeout=60)
    assert answer.status_code == 403, answer.text
    _check(guarded, "http", right)


def _load(stub: Any) -> None:
    message = service_pb2.RepositoryModelLoadRequest(model_name=MODEL)
    message.parameters["config"].string_param = json.dumps({})
    stub.RepositoryModelLoad(message, metadata=list(HEADERS.items()))


def _unload(stub: Any) -> None:
    message = service_pb2.RepositoryModelUnloadRequest(model_name=MODEL)
    message.parameters["unload_dependents"].bool_param = True
    stub.RepositoryModelUnload(message, metadata=list(HEADERS.items()))


def _naming_a_region() -> service_pb2.ModelInferRequest:
    message = service_pb2.ModelInferRequest(model_name=MODEL)
    tensor = message.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 1])
    tensor.parameters["shared_memory_region"].string_param = "others"
    tensor.parameters["shared_memory_byte_size"].int64_param = 4
    return message


def _infer(stub: Any) -> None:
    stub.ModelInfer(_naming_a_region(), metadata=list(HEADERS.items()))


def _other_model(stub: Any) -> None:
    stub.ModelInfer(service_pb2.ModelInferRequest(model_name="shared"), metadata=list(HEADERS.items()))


@pytest.fixture
def stub(guarded: Guarded) -> Iterator[Any]:
    with grpc.insecure_channel(guarded.grpc) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


@pytest.mark.parametrize(
    ("call", "right"),
    [(_load, "manage"), (_unload, "manage"), (_infer, "manage"), (_other_model, "infer")],
)
def test_over_grpc(guarded: Guarded, stub: Any, call: Callable[[Any], None], right: str) -> None:
    with pytest.raises(grpc.RpcError) as denied:
        call(stub)
    assert denied.value.code() is grpc.StatusCode.PERMISSION_DENIED
    _check(guarded, "grpc", right)


def test_over_a_stream_of_grpc(guarded: Guarded, stub: Any) -> None:
    (answer,) = stub.ModelStreamInfer(iter([_naming_a_region()]), metadata=list(HEADERS.items()))
    assert "needs the right 'manage'" in answer.error_message
    _check(guarded, "grpc", "manage")
