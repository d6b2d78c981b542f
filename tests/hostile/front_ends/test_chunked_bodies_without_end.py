"""What HTTP lets a client send around the content of a body: it has an end, and is no header."""

import http.client
import json
import selectors
import socket
import struct
import threading
from typing import Any, Final

import pytest
from hyperframe.frame import DataFrame
from repoagent_server.grpc import frontend
from repoagent_server.http.messages import Request, Response
from repoagent_server.http.reader import Limits, RequestReader
from repoagent_server.shared.reserve import Reserve

from server_stub.tests.grpc.http2.raw_client import Raw
from tests.hostile.front_ends.conftest import StartWays, Ways

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


def _fill_http(ways: Ways, head: bytes, dripping: bytes, over: threading.Event) -> None:
    with socket.create_connection(ways.address, timeout=60) as connection:
        connection.sendall(head)
        while not over.wait(0.02):
            connection.sendall(dripping)


def _fill_grpc(ways: Ways, _: bytes, dripping: bytes, over: threading.Event) -> None:
    raw = Raw(("127.0.0.1", int(ways.grpc.rpartition(":")[2])))
    raw.begin(1)
    raw.send(DataFrame(1, struct.pack(">BI", 0, 1 << 22)), *(DataFrame(1, bytes(1 << 14)) for _ in range(48)))
    with raw.socket:
        while not over.wait(0.02):
            raw.send(DataFrame(1, dripping))


_LENGTH: Final = b"POST /v2/models/numbers/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n\r\n"
_HELD: Final = 48 << 14


@pytest.mark.parametrize(
    ("fill", "head", "dripping"),
    [
        pytest.param(_fill_http, _LENGTH + bytes(_HELD), b"x", id="a length"),
        pytest.param(_fill_http, _HEAD % b"numbers" + _chunk(bytes(_HELD)), _chunk(b"x"), id="chunks"),
        pytest.param(_fill_grpc, b"", b"x", id="gRPC"),
    ],
)
def test_a_body_that_comes_by_drops_does_not_keep_its_room(
    start_ways: StartWays, monkeypatch: pytest.MonkeyPatch, fill: Any, head: bytes, dripping: bytes
) -> None:
    """T18. Others get the room once they have asked for it; as long as nobody does, a client may be slow."""
    monkeypatch.setattr(frontend, "_STALL_SECONDS", 0.5)
    reserve, over = Reserve(1 << 20), threading.Event()
    ways = start_ways(reserve=reserve, limits=Limits(stall_seconds=0.5))

    def attack() -> None:
        while not over.is_set():
            try:
                fill(ways, head, dripping, over)
            except OSError:
                return

    body = _BODY + b" " * (1 << 19)
    attacker = threading.Thread(target=attack)
    attacker.start()
    try:
        while reserve.held < _HELD * 7 // 8:
            assert attacker.is_alive()
        statuses: set[int] = set()
        for _ in range(2000):
            statuses.add(ways.http.post("/v2/models/numbers/infer", content=body).status_code)
            if 200 in statuses and reserve.refused:
                break
    finally:
        over.set()
        attacker.join()
    assert statuses == {503, 200}
