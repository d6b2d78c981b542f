"""Clients that begin a request and send no more: they keep no other client waiting, and do not stay for ever."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import pytest
from repoagent_server.http.reader import Limits

from tests.extent import in_full
from tests.hostile.front_ends.conftest import Ways

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
