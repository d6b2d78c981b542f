"""Clients that begin a request and send no more: they keep no other client waiting, and do not stay for ever."""

import http.client
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any, Final

import grpc
import pytest
from repoagent_server.http.reader import Limits
from tritonclient.grpc import service_pb2, service_pb2_grpc

from server_stub.tests.grpc.http2.raw_client import Raw
from server_stub.tests.serve.conftest import PATIENCE, Server, World, world
from tests.extent import in_full
from tests.hostile.front_ends.conftest import StartWays, Ways

pytestmark = pytest.mark.slow
_CLIENTS: Final = in_full(200, otherwise=80)
_REQUEST: Final = (
    b"POST /v2/repository/index HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
)
_INPUT: Final[dict[str, Any]] = {"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1, 2]}


@contextmanager
def _stalled(address: tuple[str, int], sent: bytes) -> Iterator[list[socket.socket]]:
    """Connections on each of which ``sent`` was sent, and nothing after it."""
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(address, timeout=120)) for _ in range(_CLIENTS)]
        for client in clients:
            client.sendall(sent)
        yield clients


def _all(client: socket.socket) -> bytes:
    received = b""
    while piece := client.recv(1 << 16):
        received += piece
    return received


@pytest.mark.parametrize("sent", [1, 30, len(_REQUEST) - 1], ids=["one byte", "half of a head", "all but one byte"])
def test_clients_that_stall_keep_nobody_waiting(ways: Ways, sent: int) -> None:
    """The others are answered while all of them stall; then each of them goes on and is answered too."""
    with _stalled(ways.address, _REQUEST[:sent]) as clients:
        for _ in range(5):
            assert ways.http.get("/v2/health/ready").status_code == 200
            answer = ways.http.post("/v2/models/numbers/infer", json={"inputs": [_INPUT]})
            assert answer.json()["outputs"][0]["data"] == [1, 2]
            assert ways.http.post("/v2/repository/index").status_code == 200
        for client in clients:
            client.sendall(_REQUEST[sent:])
        for client in clients:
            assert _all(client).startswith(b"HTTP/1.1 200 OK\r\n")


def test_clients_that_never_read_their_answers_keep_nobody_waiting(ways: Ways) -> None:
    request = b"GET /v2/models/numbers/config HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with _stalled(ways.address, request * 50):
        assert ways.http.get("/v2/health/ready").status_code == 200
        assert ways.http.post("/v2/models/numbers/infer", json={"inputs": [_INPUT]}).status_code == 200


@pytest.mark.parametrize("sent", [1, 30, len(_REQUEST) - 1], ids=["one byte", "half of a head", "all but one byte"])
def test_the_server_ends_connections_that_stall(start_ways: Any, sent: int) -> None:
    ways = start_ways(limits=Limits(stall_seconds=0.5))
    with _stalled(ways.address, _REQUEST[:sent]) as clients:
        for client in clients:
            try:
                assert b"200 OK" not in _all(client)
            except ConnectionResetError:
                continue
    assert ways.http.get("/v2/health/ready").status_code == 200


# T23: clients open more connections than a server with few descriptors may have; others are served on every port.

__all__ = ["world"]
_DESCRIPTORS: Final = 512
_CONNECTIONS: Final = 640
_AT_ONCE: Final = 8
"""Half as many as may wait to be accepted by a server of so few descriptors."""
_PORTS: Final = ("http", "grpc", "metrics")
_READY: Final = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


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


class _Used:
    """A client of every port that asks now and then, and keeps its connection.

    When it is answered, others are accepted in the same turn of the loop. Of more than may wait for that, the system
    would drop some, whose clients try again after a second or two.
    """

    def __init__(self, server: Server, stack: ExitStack) -> None:
        address = "127.0.0.1"
        self._http = {
            port: stack.enter_context(closing(http.client.HTTPConnection(address, server.port(port), timeout=PATIENCE)))
            for port in ("http", "metrics")
        }
        for client in self._http.values():
            client.connect()
        self._numbers = {port: client.sock.fileno() for port, client in self._http.items()}
        self._channel = stack.enter_context(_channel(server))

    def ask(self, port: str) -> None:
        if port == "grpc":
            _assert_ready(self._channel)
            return
        client = self._http[port]
        client.request("GET", "/v2/health/live" if port == "http" else "/metrics")
        with client.getresponse() as answer:
            answer.read()
            assert (answer.status, client.sock.fileno()) == (200, self._numbers[port]), "who asks keeps the connection"


def _serves(server: Server) -> None:
    """A new connection to every port is answered."""
    for port, path in (("http", "/v2/health/ready"), ("metrics", "/metrics")):
        with closing(http.client.HTTPConnection("127.0.0.1", server.port(port), timeout=PATIENCE)) as client:
            client.request("GET", path)
            assert client.getresponse().status == 200
    with _channel(server) as channel:
        _assert_ready(channel)


def _channel(server: Server) -> grpc.Channel:
    return grpc.insecure_channel(f"127.0.0.1:{server.port('grpc')}", [("grpc.use_local_subchannel_pool", 1)])


def _assert_ready(channel: grpc.Channel) -> None:
    ready = service_pb2_grpc.GRPCInferenceServiceStub(channel).ServerReady
    assert ready(service_pb2.ServerReadyRequest(), timeout=PATIENCE).ready


@pytest.mark.parametrize(
    ("port", "sent"),
    [*((port, b"") for port in _PORTS), ("http", b"GET /v2/health"), ("http", _READY)],
    ids=[*(f"nothing to {port}" for port in _PORTS), "half a request", "a request"],
)
def test_others_are_served_while_connections_are_held(server: Server, port: str, sent: bytes) -> None:
    with ExitStack() as stack:
        used = _Used(server, stack)
        for count in range(_CONNECTIONS):
            idle = stack.enter_context(socket.create_connection(("127.0.0.1", server.port(port)), PATIENCE))
            idle.sendall(sent)
            if count % _AT_ONCE == 0:
                used.ask(port)
            if count % 50 == 0:
                used.ask("http")
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
    monkeypatch.setattr("repoagent_server.grpc.frontend._STALL_SECONDS", 0.5)
    host, _, port = start_ways().grpc.rpartition(":")
    raw = Raw((host, int(port)))
    with raw.socket:
        assert raw.ended() == 0
