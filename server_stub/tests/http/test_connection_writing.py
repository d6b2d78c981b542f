"""When answers are written: at once while nobody else can have asked, else when all that came together is answered."""

import asyncio
from typing import Any

import pytest
from repoagent_server.http.connection import HttpConnection
from repoagent_server.http.messages import Request, Response
from repoagent_server.http.reader import Limits
from repoagent_server.http.service import HttpService, Params, Route, Router
from repoagent_server.shared.connections import Connections

_ASK = b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n"


class _Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.reading = True

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return False

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return 0


def _answer(_: Request, __: Params) -> Response:
    return Response(200, b"{}")


@pytest.fixture
async def connections() -> Connections:
    return Connections(asyncio.get_running_loop(), 3600.0)


def _open(connections: Connections) -> tuple[HttpConnection, _Transport]:
    route = Route("/x", frozenset({b"GET"}), answer=_answer)
    service = HttpService(Router([route]), asyncio.get_running_loop(), None)  # type: ignore[arg-type]  # nothing blocks
    connection, transport = HttpConnection(service, connections, Limits()), _Transport()
    connection.connection_made(transport)
    return connection, transport


async def test_the_only_connection_has_its_answers_at_once(connections: Connections) -> None:
    connection, transport = _open(connections)
    connection.data_received(_ASK)  # its head is not known yet: it is parsed, and others could follow it
    await asyncio.sleep(0)
    for count in (2, 3):
        connection.data_received(_ASK)
        assert len(transport.written) == count


async def test_with_another_connection_they_are_written_together(connections: Connections) -> None:
    pairs = [_open(connections) for _ in range(2)]
    for rounds in (1, 2):
        for connection, _ in pairs:
            connection.data_received(_ASK)
        assert [len(transport.written) for _, transport in pairs] == [rounds - 1] * 2
        await asyncio.sleep(0)
        assert [len(transport.written) for _, transport in pairs] == [rounds] * 2


async def test_what_is_sent_ahead_is_answered_with_one_write(connections: Connections) -> None:
    connection, transport = _open(connections)
    for _ in range(2):
        connection.data_received(_ASK * 3)
        await asyncio.sleep(0)
    assert [written.count(b"200 OK") for written in transport.written] == [3, 3]


async def test_a_client_that_sends_ahead_and_does_not_read_is_not_read_from(connections: Connections) -> None:
    connection, transport = _open(connections)
    connection.pause_writing()
    connection.data_received(_ASK * 3)
    await asyncio.sleep(0)
    assert (transport.written, transport.reading) == ([], False)
    connection.resume_writing()
    await asyncio.sleep(0)
    assert transport.written[0].count(b"200 OK") == 3
    assert transport.reading
