"""Names in paths and messages that look like one model to the check and might be another to the server."""

import socket
from typing import Any

import grpc
import httpx
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from server_stub.tests.access.conftest import Guarded

FRAUD = {"x-api-key": "fraud-key"}


def _get(guarded: Guarded, target: bytes) -> bytes:
    """The whole answer to a request whose target is sent as it is."""
    host, _, port = guarded.http.removeprefix("http://").partition(":")
    head = b"GET %b HTTP/1.1\r\nHost: localhost\r\nx-api-key: fraud-key\r\nConnection: close\r\n\r\n" % target
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(head)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    return answer


@pytest.mark.parametrize(
    "target",
    [
        b"/v2/models/shared",
        b"/v2/models/fraud-eu/../shared",
        b"/v2/models/fraud-eu/..%2Fshared",
        b"/v2/models/fraud-eu%2F..%2Fshared",
        b"/v2/models/fraud-eu%2f%2e%2e%2fshared",
        b"/v2/models/fraud-eu%252F..%252Fshared",
        b"/v2/models/fraud-eu%5C..%5Cshared",
        b"/v2/models/fraud-eu%00shared",
        b"/v2/models/fraud-%0ashared",
        b"/v2/models/%73hared",
        b"/v2/models/./shared",
        b"/v2/models//shared",
        b"//v2/models/shared",
        b"/v2//models/shared",
        b"/v2/models/shared/",
        b"/v2/models/shared?model=fraud-eu",
        b"/v2/models/fraud-eu?model=shared",
        b"/v2/models/fraud-eu;/../shared",
        b"/v2/models/fraud-eu#/../shared",
        b"/v2/models/Shared",
        b"/v2/models/\xef\xbd\x93hared",
        b"/v2/models/%c0%73hared",
        b"/v2/models/shared%c0%80",
        b"/v2/models/*",
        b"/v2/models/fraud-*",
        b"/v2/models/[fs]hared",
        b"http://localhost/v2/models/shared",
        b"http://localhost/v2/models/fraud-eu/../shared",
        b"/v2/models/shared/versions/1",
        b"/v1/models/shared",
        b"/v1/models/fraud-eu/../shared",
        b"/v1/models/fraud-eu%2F..%2Fshared",
        b"/v2/models/" + b"a" * 5000,
    ],
    ids=lambda target: repr(target)[:60],
)
def test_no_spelling_leads_to_another_model(guarded: Guarded, target: bytes) -> None:
    answer = _get(guarded, target)
    status = int(answer.split(b" ", 2)[1])
    assert (status in (400, 403, 404)) or b'"name":"fraud-eu"' in answer
    assert b'"name":"shared"' not in answer
    assert b'"id":"shared"' not in answer


@pytest.mark.parametrize("name", ["shared", "fraud-eu/../shared", "fraud-eu\0shared", "fraud-*", "*", "x" * 100_000])
def test_no_name_in_a_message_leads_to_another_model(guarded: Guarded, name: str) -> None:
    with grpc.insecure_channel(guarded.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        asked: Any
        for method, asked in (
            (stub.ModelMetadata, service_pb2.ModelMetadataRequest(name=name)),
            (stub.ModelInfer, service_pb2.ModelInferRequest(model_name=name)),
            (stub.ModelStatistics, service_pb2.ModelStatisticsRequest(name=name)),
        ):
            with pytest.raises(grpc.RpcError) as raised:
                method(asked, metadata=list(FRAUD.items()))
            codes = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT)
            assert raised.value.code() in codes
            assert len(raised.value.details()) < 2000


def test_a_namespace_in_a_name_is_part_of_the_name(guarded: Guarded) -> None:
    for name in ("ns::fraud-eu", "/models::fraud-eu", "fraud-eu::shared"):
        answer = httpx.get(f"{guarded.http}/v2/models/{name.replace('/', '%2F')}", headers=FRAUD)
        assert answer.status_code in (403, 404)
