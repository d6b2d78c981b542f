"""T23: clients open more connections than a server with few descriptors may have; others are served on every port."""

import http.client
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Final

import grpc
import pytest
from repoagent_server.http.reader import Limits
from tritonclient.grpc import service_pb2, service_pb2_grpc

from server_stub.tests.grpc.http2.raw_client import Raw
from server_stub.tests.serve.conftest import PATIENCE, Server, World, world
from tests.hostile.front_ends.conftest import StartWays

__all__ = ["world"]

pytestmark = pytest.mark.slow

_DESCRIPTORS: Final = 512
_CONNECTIONS: Final = 640
_PORTS: Final = ("http", "grpc", "metrics")
_REQUEST: Final = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def server(world: World) -> Iterator[Server]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _CONNECTIONS + _DESCRIPTORS
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"needs {wanted} file descriptors; the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    flags = ["--allow-grpc=true", "--grpc-port=0", "--allow-metrics=true", "--metrics-port=0", "--load-model=plain"]
    yield world.serve(*flags, before=["prlimit", f"--nofile={_DESCRIPTORS}:{_DESCRIPTORS}"])
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _serves(server: Server) -> None:
    """A new connection to every port is answered."""
    for port, path in (("http", "/v2/health/ready"), ("metrics", "/metrics")):
        with closing(http.client.HTTPConnection("127.0.0.1", server.port(port), timeout=PATIENCE)) as client:
            client.request("GET", path)
            assert client.getresponse().status == 200
    with grpc.insecure_channel(f"127.0.0.1:{server.port('grpc')}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        ready = service_pb2_grpc.GRPCInferenceServiceStub(channel).ServerReady
        assert ready(service_pb2.ServerReadyRequest(), timeout=PATIENCE).ready


@pytest.mark.parametrize(
    ("port", "sent"),
    [*((port, b"") for port in _PORTS), ("http", b"GET /v2/health"), ("http", _REQUEST)],
    ids=[*(f"nothing to {port}" for port in _PORTS), "half a request", "a request"],
)
def test_others_are_served_while_connections_are_held(server: Server, port: str, sent: bytes) -> None:
    with ExitStack() as stack:
        used = stack.enter_context(closing(http.client.HTTPConnection("127.0.0.1", server.port("http"))))
        used.connect()
        number = used.sock.fileno()
        for count in range(_CONNECTIONS):
            idle = stack.enter_context(socket.create_connection(("127.0.0.1", server.port(port)), PATIENCE))
            idle.sendall(sent)
            if count % 50 == 0:
                used.request("GET", "/v2/health/live")
                with used.getresponse() as answer:
                    assert (answer.status, used.sock.fileno()) == (200, number), "who asks keeps the connection"
                _serves(server)
        assert server.answer("plain") == [1, -2, 3, -4]
        _serves(server)


def test_a_connection_without_a_first_request_ends(start_ways: StartWays) -> None:
    ways = start_ways(limits=Limits(stall_seconds=0.5))
    with socket.create_connection(ways.address, PATIENCE) as silent:
        assert silent.recv(1) == b""


def test_a_channel_without_a_first_call_is_asked_to_come_again_with_it(
    start_ways: StartWays, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repoagent_server.grpc.http2.transport._STALL_SECONDS", 0.5)
    host, _, port = start_ways().grpc.rpartition(":")
    raw = Raw((host, int(port)))
    with raw.socket:
        assert raw.ended() == 0
