"""What HTTP lets a client send around the content of a body: it has an end, and is no header."""

import http.client
import json
import selectors
import socket
from typing import Final

import pytest
from repoagent_server.http.messages import Request, Response
from repoagent_server.http.reader import Limits, RequestReader
from repoagent_server.shared.reserve import Reserve

from tests.hostile.front_ends.conftest import Ways

_HEAD: Final = b"POST /v2/models/%b/infer HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
_BODY: Final = json.dumps(
    {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [100], "data": list(range(100))}]}
).encode()
_PIECE: Final = 1 << 16
_MOST: Final = 1 << 26
"""Bytes: several times what the buffers of two sockets hold."""
"""Pieces after which a server that has not answered would take any number."""


def _answer(connection: socket.socket) -> tuple[int, bytes]:
    response = http.client.HTTPResponse(connection, method="POST")
    response.begin()
    return response.status, response.read()


def _chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


def _ready(connection: socket.socket, events: int) -> int:
    """Which of ``events`` is there, once one is."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection, events)
        ((_, found),) = selector.select(60)
        return found


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        pytest.param(_chunk(b"{}") + b"0\r\n", b"a: b\r\n" * (_PIECE // 6), id="fields behind the last chunk"),
        pytest.param(_chunk(b"{}") + b"0\r\na: ", b"b" * _PIECE, id="one such field"),
        pytest.param(_chunk(b"{}") + b"2;a=", b"b" * _PIECE, id="an extension of a chunk"),
    ],
)
def test_what_is_around_a_body_has_an_end(ways: Ways, start: bytes, piece: bytes) -> None:
    with socket.create_connection(ways.address, timeout=60) as connection:
        connection.sendall(_HEAD % b"numbers" + start)
        connection.setblocking(False)
        sent = 0
        while not _ready(connection, selectors.EVENT_READ | selectors.EVENT_WRITE) & selectors.EVENT_READ:
            sent += connection.send(piece)
            assert sent < _MOST, "the server takes it without end"
        connection.settimeout(60)
        assert _answer(connection)[0] == 431


def test_a_body_of_more_chunks_than_tritons_is_refused(ways: Ways) -> None:
    """F19. The limit is of one body: connections may go on after it."""
    with socket.create_connection(ways.address, timeout=60) as connection:
        for _ in range(2):
            connection.sendall(_HEAD % b"numbers" + _chunk(b" ") * 65_535 + b"0\r\n\r\n")
            assert _answer(connection)[0] == 500  # it is no JSON
        connection.sendall(_HEAD % b"numbers" + _chunk(b" ") * 65_537)
        status, body = _answer(connection)
    assert (status, b"more than 65536 chunks" in body) == (400, True)


def test_chunks_of_one_byte_make_the_body_that_they_are(ways: Ways) -> None:
    chunks = b"".join(_chunk(_BODY[place : place + 1]) for place in range(len(_BODY)))
    with socket.create_connection(ways.address, timeout=60) as connection:
        for _ in range(2):
            connection.sendall(_HEAD % b"numbers" + chunks + b"0\r\n\r\n")
            status, body = _answer(connection)
            assert status == 200
            assert json.loads(body)["outputs"][0]["data"] == list(range(100))


class _Sink:
    """Keeps the requests that it is given."""

    alone = True

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def take(self, request: Request, keep_alive: bool, http_1_0: bool) -> None:
        del keep_alive, http_1_0
        self.requests.append(request)

    def refuse(self, response: Response) -> None:
        raise AssertionError(response.body)

    def refuses(self, request: Request, keep_alive: bool, http_1_0: bool) -> bool:
        del request, keep_alive, http_1_0
        return False

    def invite(self) -> None:
        """Nobody waits."""


def test_a_field_behind_the_last_chunk_is_no_header() -> None:
    """A proxy in front of the server checks headers; it may pass such fields on unread."""
    sink = _Sink()
    reader = RequestReader(sink, Limits(), Reserve(1 << 30))
    reader.feed(_HEAD % b"m" + _chunk(b"{}") + b"0\r\nX-Role: operator\r\n\r\n")
    (request,) = sink.requests
    assert [name for name, _ in request.headers] == [b"Host", b"Transfer-Encoding"]


def test_a_large_body_in_small_chunks_is_not_as_many_objects() -> None:
    sink = _Sink()
    reader = RequestReader(sink, Limits(), Reserve(1 << 30))
    reader.feed(_HEAD % b"m")
    for _ in range(60):
        rest = reader.feed(_chunk(b"ab") * 1000)
        while rest:
            rest = reader.feed(rest)
    assert len(reader._pieces) < 1000
    reader.feed(b"0\r\n\r\n")
    assert bytes(sink.requests[0].body) == b"ab" * 60_000
