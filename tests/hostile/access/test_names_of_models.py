"""Names in paths and messages that look like one model to the check and might be another to the server."""

import hashlib
import hmac
import socket
from typing import Any

import grpc
import httpx
import pytest
from repoagent_server.access import Grant, Right
from repoagent_server.access.clients import Client
from repoagent_server.access.credentials import Given
from repoagent_server.access.rules import Rules
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


# Headers that try to pass as a key, or to bring several.

LONG = b"x" * 8193


def _status(guarded: Guarded, *lines: bytes) -> int:
    """The status of a request with these lines of headers; 0 if the connection ends without one."""
    host, _, port = guarded.http.removeprefix("http://").partition(":")
    head = b"\r\n".join([b"GET /v2/models/shared HTTP/1.1", b"Host: localhost", *lines, b"Connection: close", b"", b""])
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(head)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    return int(answer.split(b" ", 2)[1]) if answer else 0


@pytest.mark.parametrize(
    "lines",
    [
        [b"Authorization: Bearer root-key"],
        [b"AUTHORIZATION: bearer root-key"],
        [b"authorization:BEARER   root-key  "],
        [b"X-Api-Key: root-key"],
        [b"x-api-key:\troot-key\t"],
    ],
    ids=repr,
)
def test_spellings_that_mean_a_key(guarded: Guarded, lines: list[bytes]) -> None:
    assert _status(guarded, *lines) == 200


@pytest.mark.parametrize(
    "lines",
    [
        [b"Authorization: root-key"],
        [b"Authorization: Bearer"],
        [b"Authorization: Bearer "],
        [b"Authorization: Basic root-key"],
        [b"Authorization: Bearerroot-key"],
        [b"Authorization: Bearer root-key x"],
        [b"Authorization: Bearer\troot-key"],
        [b"Authorization: Bearer root-key, Bearer root-key"],
        [b"Authorization: Bearer x,root-key"],
        [b'Authorization: Bearer "root-key"'],
        [b"Authorization: Bearer root-key", b"Authorization: Bearer root-key"],
        [b"Authorization: Bearer wrong", b"authorization: Bearer root-key"],
        [b"Authorization: Bearer root-key", b"X-API-Key: root-key"],
        [b"x-api-key: root-key", b"x-api-key: wrong"],
        [b"x-api-key: root-key,root-key"],
        [b"x-api-key: Bearer root-key"],
        [b"x-api-key:"],
        [b"x-api-key: root-key\xc2\xa0"],
        [b"x-api-key: root-k\xc3\xa9y"],
        [b"x-api-key: root-key\x00"],
        [b"x-api-key: root-\x0bkey"],
        [b"x-api-key : root-key"],
        [b"x_api_key: root-key"],
        [b" x-api-key: root-key"],
        [b"x: y", b" x-api-key: root-key"],
        [b"Proxy-Authorization: Bearer root-key"],
        [b"Cookie: authorization=Bearer root-key"],
        [b"x-api-key: " + hashlib.sha256(b"root-key").hexdigest().encode()],
        [b"x-api-key: sha256:" + hashlib.sha256(b"root-key").hexdigest().encode()],
        [b"x-api-key: " + LONG],
        [b"Authorization: Bearer " + LONG],
        [b"Authorization: " + b"Bearer " * 1000 + b"root-key"],
        [b"Authorization:" + b" " * 5000 + b"Bearer" + b" " * 5000],
    ],
    ids=lambda lines: repr(lines)[:60],
)
def test_spellings_that_do_not(guarded: Guarded, lines: list[bytes]) -> None:
    assert _status(guarded, *lines) in (400, 401)


@pytest.mark.parametrize(
    "metadata",
    [
        [("authorization", "root-key")],
        [("authorization", "Bearer root-key"), ("authorization", "Bearer root-key")],
        [("authorization", "Bearer root-key"), ("x-api-key", "root-key")],
        [("authorization", "Bearer root-key,x")],
        [("x-api-key", "")],
        [("x-api-key-bin", b"root-key")],
        [("authorization-bin", b"Bearer root-key")],
        [("x-api-key", "x" * 8193)],
    ],
    ids=lambda metadata: repr(metadata)[:60],
)
def test_metadata_that_do_not(guarded: Guarded, metadata: list[tuple[str, Any]]) -> None:
    with grpc.insecure_channel(guarded.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as raised:
            stub.ModelMetadata(service_pb2.ModelMetadataRequest(name="shared"), metadata=metadata)
    assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_key_is_compared_by_its_whole_digest_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = hashlib.sha256(b"key").digest()
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return real(a, b)

    monkeypatch.setattr("hmac.compare_digest", compare)
    rules = Rules(keys={digest: Client("a", ())})
    assert rules.caller(Given(b"key")).name == "a"
    assert compared == [(digest, digest)]


def test_nothing_shows_a_key(guarded: Guarded) -> None:
    assert "key" not in repr(Given(b"key")).replace("secret", "")
    guarded.denied.clear()
    assert _status(guarded, b"Authorization: Bearer nobody-may-see-this") == 401
    assert "nobody-may-see-this" not in repr(guarded.denied)


def test_names_that_a_client_asks_for_do_not_pile_up() -> None:
    client = Client("a", [Grant(("x-*",), frozenset(Right))])
    for number in range(10_000):
        assert client.may(Right.INFER, f"x-{number}")
        assert not client.may(Right.INFER, f"y-{number}")
    assert len(client._known) <= 4096
