"""A part of the API that needs a header stays closed, however its path, the header or the method is written."""

import socket
from collections.abc import Iterator
from typing import Any, Final

import grpc
import httpx
import pytest
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.handlers.headers import Api, Restriction

from tests.hostile.front_ends.conftest import Ways

_HEADER: Final = "x-key"
_SECRET: Final = "open sesame"
_OUTPUT: Final = "OUTPUT0"
_SERVICE: Final = "/inference.GRPCInferenceService/"


@pytest.fixture(scope="module")
def closed(start_ways: Any) -> Ways:
    """Front ends whose every part but health needs the header."""
    key = Restriction(_HEADER, _SECRET.encode())
    ways: Ways = start_ways(restrictions={api: key for api in Api if api is not Api.HEALTH})
    return ways


@pytest.fixture(autouse=True)
def _nothing_changed(closed: Ways) -> Iterator[None]:
    """After each try the models are there, and with the header the server answers."""
    yield
    assert closed.http.get("/v2/models/numbers/ready").status_code == 200
    assert closed.http.get("/v2/models/numbers/config", headers={_HEADER: _SECRET}).json()["name"] == "numbers"


def _raw(ways: Ways, *lines: bytes) -> tuple[int, bytes]:
    """Send the lines as they are, which a client's library would mend."""
    with socket.create_connection(ways.address, timeout=60) as connection:
        connection.sendall(b"\r\n".join([*lines, b"Host: localhost", b"Connection: close", b"", b""]))
        received = b""
        while piece := connection.recv(1 << 16):
            received += piece
    return int(received.split(b" ", 2)[1]), received


@pytest.mark.parametrize(
    "target",
    [
        b"/v2/models/numbers/config",
        b"/v2/models/numbers/config?x=1",
        b"/v2/models/numbers/config?/v2/health/live",
        b"/v2/models/numbers/config#/v2/health/live",
        b"/v2/models/numbers/config;x=/v2/health/live",
        b"/v2/models/numbers/config/",
        b"/v2/models/numbers//config",
        b"//v2/models/numbers/config",
        b"/v2//models/numbers/config",
        b"/./v2/models/numbers/config",
        b"/v2/health/../models/numbers/config",
        b"/v2/health/live/../../models/numbers/config",
        b"/v2/health/%2e%2e/models/numbers/config",
        b"/v2/health/live%2f..%2f..%2fmodels/numbers/config",
        b"/V2/models/numbers/config",
        b"/v2/MODELS/numbers/config",
        b"/v2/models/numbers/Config",
        b"/v2/models/numbers/c%6fnfig",
        b"/v2/%6dodels/numbers/config",
        b"/v2/models/n%75mbers/config",
        b"/v2/models/%6e%75%6d%62%65%72%73/config",
        b"/v2/models/n%2575mbers/config",
        b"/v2/models/numbers%2fconfig",
        b"/v2/models/numbers%2fconfig/ready",
        b"/v2/models/numbers/config%00",
        b"/v2/models/numbers/config%20",
        b"/v2/models/numbers/config%0a",
        b"/v2/models/numbers/config%3f",
        b"/v2/models/numbers/versions/1/config",
        b"/v2/models/numbers/versions/01/config",
        b"/v2/models/numbers/versions//config",
        b"http://localhost/v2/models/numbers/config",
        b"http://localhost//v2/models/numbers/config",
        b"http://localhost/v2/health/live/http://localhost/v2/models/numbers/config",
        b"x://v2/v2/models/numbers/config",
        b"/v2/models/numbers\\config",
        b"/v2/models/numbers",
        b"/v2/models/numbers/stats",
        b"/v2/logging",
        b"/v2/trace/setting",
        b"/v2/systemsharedmemory/status",
        b"/v2",
    ],
)
def test_no_spelling_of_a_path_goes_round(closed: Ways, target: bytes) -> None:
    status, received = _raw(closed, b"GET %b HTTP/1.1" % target)
    assert status in (400, 403, 404), received
    assert _OUTPUT.encode() not in received


@pytest.mark.parametrize(
    "lines",
    [
        [b"X-Key:"],
        [b"X-Key: "],
        [b"X-Key: open sesam"],
        [b"X-Key: open sesame2"],
        [b"X-Key: Open Sesame"],
        [b"X-Key: open  sesame"],
        [b"X-Key: open%20sesame"],
        [b'X-Key: "open sesame"'],
        [b"X-Key: open sesame, open sesame"],
        [b"X-Key: wrong", b"X-Key: open sesame"],
        [b"X-Key:", b"X-Key: open sesame"],
        [b"X_Key: open sesame"],
        [b"X-Key2: open sesame"],
        [b"X-Key : open sesame"],
        [b"X-Key: open", b" sesame"],
        [b"X-Key: open sesame\0"],
        [b"Cookie: x-key=open sesame"],
        [b"Authorization: open sesame"],
        [b"X-Forwarded-X-Key: open sesame"],
        [b"X-Original-URL: /v2/health/live"],
        [b"X-Rewrite-URL: /v2/health/live"],
        [b"X-HTTP-Method-Override: GET"],
    ],
)
def test_no_other_header_is_the_header(closed: Ways, lines: list[bytes]) -> None:
    status, received = _raw(closed, b"GET /v2/models/numbers/config HTTP/1.1", *lines)
    assert status in (400, 403), received
    assert _OUTPUT.encode() not in received


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "POST", "PROPFIND"])
@pytest.mark.parametrize("target", ["/v2/repository/models/numbers/unload", "/v2/models/numbers/config"])
def test_no_method_goes_round(closed: Ways, method: str, target: str) -> None:
    overrides = {"X-HTTP-Method-Override": "GET", "X-Method-Override": "POST"}
    for headers in ({}, overrides):
        answer = closed.http.request(method, target, headers=headers)
        assert answer.status_code == 403
        assert _OUTPUT not in answer.text


def test_a_path_that_was_let_in_once_is_not_open_then(closed: Ways) -> None:
    """Neither the routes that were looked up before nor the heads that a connection has sent before carry it on."""
    with httpx.Client(base_url=closed.http.base_url) as client:
        for headers, status in ({_HEADER: _SECRET}, 200), ({}, 403), ({_HEADER: _SECRET}, 200), ({_HEADER: "x"}, 403):
            assert client.get("/v2/models/numbers/config", headers=headers).status_code == status


def test_a_request_behind_one_that_is_let_in_needs_the_header_itself(closed: Ways) -> None:
    one = b"GET /v2/models/numbers/config HTTP/1.1\r\nHost: localhost\r\nX-Key: open sesame\r\n\r\n"
    status, received = _raw(closed, one + b"GET /v2/models/text/config HTTP/1.1")
    assert status == 200
    assert received.count(b"HTTP/1.1 403 ") == 1
    assert b'"text"' not in received


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        [(_HEADER, "")],
        [(_HEADER, "open sesam")],
        [(_HEADER, "Open sesame")],
        [(_HEADER, "open sesame, open sesame")],
        [(_HEADER, "wrong"), (_HEADER, _SECRET)],
        [(f"{_HEADER}-bin", _SECRET.encode())],
        [("x_key", _SECRET)],
        [("authorization", _SECRET)],
    ],
    ids=str,
)
def test_no_metadata_goes_round_over_grpc(closed: Ways, metadata: list[tuple[str, Any]]) -> None:
    with grpc.insecure_channel(closed.grpc) as channel:
        for name, message in (
            ("ModelConfig", pb.ModelConfigRequest(name="numbers")),
            ("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="numbers")),
        ):
            call = channel.unary_unary(_SERVICE + name, type(message).SerializeToString)
            with pytest.raises(grpc.RpcError) as refused:
                call(message, metadata=metadata, timeout=60)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "restricted" in refused.value.details()


@pytest.mark.parametrize(
    "path",
    [
        "/inference.GRPCInferenceService/modelconfig",
        "/inference.grpcinferenceservice/ModelConfig",
        "//inference.GRPCInferenceService/ModelConfig",
        "/inference.GRPCInferenceService//ModelConfig",
        "/inference.GRPCInferenceService/ModelConfig/",
        "/inference.GRPCInferenceService/ModelConfig?x",
        "/inference.GRPCInferenceService/Model%43onfig",
        "/grpc.health.v1.Health/../inference.GRPCInferenceService/ModelConfig",
    ],
)
def test_no_spelling_of_a_method_goes_round_over_grpc(closed: Ways, path: str) -> None:
    with grpc.insecure_channel(closed.grpc) as channel:
        call = channel.unary_unary(path, pb.ModelConfigRequest.SerializeToString)
        with pytest.raises(grpc.RpcError) as refused:
            call(pb.ModelConfigRequest(name="numbers"), timeout=60)
    assert refused.value.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAVAILABLE)
