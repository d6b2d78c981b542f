"""Headers that try to pass as a key, or to bring several."""

import hashlib
import hmac
import socket
from typing import Any

import grpc
import pytest
from repoagent_server.access import Grant, Right
from repoagent_server.access.clients import Client
from repoagent_server.access.credentials import Given
from repoagent_server.access.rules import Rules
from tritonclient.grpc import service_pb2, service_pb2_grpc

from server_stub.tests.access.conftest import Guarded

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
