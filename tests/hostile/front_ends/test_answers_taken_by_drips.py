"""T18: a client that takes a byte of its answer now and then keeps it only as long as nobody else needs the room."""

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import pytest
from repoagent_server.grpc.http2.connection import Connection
from repoagent_server.grpc.http2.frames import ENHANCE_YOUR_CALM, PREFACE, RST_STREAM, number_frame
from repoagent_server.grpc.http2.socket_protocol import SocketProtocol
from repoagent_server.http.connection import HttpConnection
from repoagent_server.http.messages import Request, Response
from repoagent_server.http.reader import Limits
from repoagent_server.http.service import HttpService, Params, Route, Router
from repoagent_server.shared.connections import Connections
from repoagent_server.shared.grpc_options import GrpcOptions
from repoagent_server.shared.reserve import Reserve

from server_stub.tests.grpc.http2.conftest import Recorder, headers_frame

_MIB: Final = 1 << 20
_ANSWER: Final = 8 * _MIB
_ASK: Final = b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n"


class _Socket(asyncio.Transport):
    """One whose client takes what a test says."""

    def __init__(self, high: int) -> None:
        super().__init__()
        self.protocol: Any = None
        self.unread = 0
        self.sent = b""
        self.is_aborted = False
        self._high = high

    def write(self, data: Any) -> None:
        self.sent += bytes(data)
        self.unread += len(data)
        if self.unread > self._high:
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def take(self, size: int) -> None:
        """The client reads ``size`` bytes."""
        full, self.unread = self.unread > self._high, self.unread - size
        if full and self.unread < self._high // 4:
            self.protocol.resume_writing()

    def get_write_buffer_size(self) -> int:
        return self.unread

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self.is_aborted

    def is_reading(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def abort(self) -> None:
        self.is_aborted = True


def _refuse_somebody(reserve: Reserve) -> None:
    other = reserve.hold()
    assert not other.resize(2 * reserve.limit)


@pytest.fixture
def reserve() -> Reserve:
    reserve = Reserve(4 * _ANSWER)
    reserve.take(0, 2 * _ANSWER)  # by others
    return reserve


@pytest.fixture
async def connections() -> Connections:
    return Connections(asyncio.get_running_loop(), 3600.0)


def _answer(_: Request, __: Params) -> Response:
    return Response(200, bytes(_ANSWER))


def _http(connections: Connections, reserve: Reserve) -> tuple[HttpConnection, _Socket]:
    """A connection whose answer waits for its client."""
    router = Router([Route("/x", frozenset({b"GET"}), answer=_answer)])
    service = HttpService(router, asyncio.get_running_loop(), None)  # type: ignore[arg-type]  # nothing blocks
    service.reserve = reserve
    connection, client = HttpConnection(service, connections, Limits()), _Socket(1 << 16)
    client.protocol = connection
    connection.connection_made(client)
    connection.data_received(_ASK)
    connection.flush()
    assert client.unread > _ANSWER
    return connection, client


@pytest.mark.parametrize(("taken", "needed", "is_ended"), [(1, True, True), (1, False, False), (_MIB, True, False)])
async def test_http(connections: Connections, reserve: Reserve, taken: int, needed: bool, is_ended: bool) -> None:
    connection, client = _http(connections, reserve)
    connection.close_if_stalled()
    for _ in range(3):
        client.take(taken)
        if needed:
            _refuse_somebody(reserve)
        connection.close_if_stalled()
    assert client.is_aborted is is_ended
    if is_ended:
        connection.connection_lost(None)
        assert reserve.held == 2 * _ANSWER


async def test_http_streams_that_grow(connections: Connections) -> None:
    """What the model adds to an answer is not mistaken for what its client takes, nor the other way round."""
    reserve = Reserve(16 * _ANSWER)
    reserve.take(0, 8 * _ANSWER)
    connection, client = _http(connections, reserve)
    exchange: Any = type("Exchange", (), {"http_1_0": True})
    connection.close_if_stalled()
    for _ in range(3):
        client.take(_MIB)
        connection.write(exchange, bytes(_MIB))
        _refuse_somebody(reserve)
        connection.close_if_stalled()
    assert not client.is_aborted
    connection.write(exchange, bytes(_MIB))
    client.take(1)
    _refuse_somebody(reserve)
    connection.close_if_stalled()
    assert client.is_aborted


@dataclass
class _Dispatcher(Recorder):
    loop: Any = None
    reserve: Any = None


class _Grpc:
    """A connection of gRPC with calls 1 and 3; the answer of 1 waits for its window."""

    def __init__(self, connections: Connections, reserve: Reserve) -> None:
        self.application = _Dispatcher(loop=asyncio.get_running_loop(), reserve=reserve)
        dispatcher: Any = self.application
        self.protocol = SocketProtocol(dispatcher, connections, GrpcOptions(keepalive_time_ms=0))
        self.client = _Socket(_MIB)
        self.client.protocol = self.protocol
        self.protocol.connection_made(self.client)
        self.receive(PREFACE + b"\0\0\0\x04\0\0\0\0\0" + headers_frame(1).serialize() + headers_frame(3).serialize())

    @property
    def connection(self) -> Connection:
        return self.protocol.connection

    def receive(self, data: bytes) -> None:
        self.protocol.data_received(data)

    def answer(self, stream: int, size: int) -> None:
        assert self.connection.sender.send(self.application.calls[stream].stream, (bytes(size),))
        self.protocol.flush()

    def widen(self, stream: int, size: int) -> None:
        """The client lets ``size`` bytes more flow."""
        self.receive(number_frame(8, stream, size) + number_frame(8, 0, size))


@pytest.mark.parametrize(("taken", "needed", "is_ended"), [(1, True, True), (1, False, False), (_MIB, True, False)])
async def test_grpc_windows(
    connections: Connections, reserve: Reserve, taken: int, needed: bool, is_ended: bool
) -> None:
    """Of a connection that is used otherwise only the call ends that is dripped."""
    grpc = _Grpc(connections, reserve)
    grpc.answer(1, _ANSWER)
    grpc.client.take(grpc.client.unread)
    grpc.protocol.close_if_stalled()
    for _ in range(3):
        grpc.widen(1, taken)
        grpc.widen(3, 1000)
        grpc.answer(3, 1000 - 5)
        grpc.client.take(grpc.client.unread)
        if needed:
            _refuse_somebody(reserve)
        grpc.protocol.close_if_stalled()
    grpc.protocol.flush()
    assert not grpc.client.is_aborted
    assert (number_frame(RST_STREAM, 1, ENHANCE_YOUR_CALM) in grpc.client.sent) is is_ended
    assert (1 not in grpc.connection.streams) is is_ended
    assert grpc.application.calls[1].is_lost is is_ended
    assert (reserve.held == 2 * _ANSWER) is is_ended
    assert 3 in grpc.connection.streams


@pytest.mark.parametrize(("taken", "is_ended"), [(1, True), (_MIB // 8, False)])
async def test_grpc_sockets(connections: Connections, reserve: Reserve, taken: int, is_ended: bool) -> None:
    """The windows are wide, and the socket is what is dripped."""
    grpc = _Grpc(connections, reserve)
    grpc.widen(1, 2 * _ANSWER)
    grpc.answer(1, _ANSWER)
    assert grpc.client.unread > _MIB
    grpc.protocol.close_if_stalled()
    for _ in range(3):
        grpc.client.take(taken)
        _refuse_somebody(reserve)
        grpc.receive(number_frame(8, 0, 1))
        grpc.protocol.close_if_stalled()
    assert grpc.client.is_aborted is is_ended
