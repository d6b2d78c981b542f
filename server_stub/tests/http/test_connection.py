"""HTTP/1.1 over real sockets, byte by byte where it matters."""

import asyncio
import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO, Final

import numpy as np
import pytest
from repoagent_server.http.connection import HttpConnection
from repoagent_server.http.frontend import HttpFrontend
from repoagent_server.http.messages import Request, Response
from repoagent_server.http.reader import Limits
from repoagent_server.http.service import HttpService, Params, Route, Router
from repoagent_server.shared.connections import Connections

from repoagent.serving.requests.tensor import Tensor

Connect = Callable[[], socket.socket]

_BODY: Final = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,2],"data":[1,2]}]}'
_LIVE: Final = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


def _infer(body: bytes = _BODY, model: str = "ident", extra: bytes = b"") -> bytes:
    return (
        b"POST /v2/models/%s/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n%s\r\n"
        % (model.encode(), len(body), extra)
        + body
    )


def _response(connection: socket.socket, method: str = "POST") -> tuple[int, bytes, http.client.HTTPResponse]:
    response = http.client.HTTPResponse(connection, method=method)
    response.begin()
    return response.status, response.read(), response


def _next(replies: BinaryIO) -> tuple[int, bytes]:
    """The next of several responses, none of them in pieces: its status and its body."""
    status = int(replies.readline().split()[1])
    length = int(http.client.parse_headers(replies)["Content-Length"])
    return status, replies.read(length)


def _ends(connection: socket.socket) -> bool:
    """Whether the server has closed the connection without sending more."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_connection_is_kept_for_many_requests(connect: Connect) -> None:
    connection = connect()
    for _ in range(3):
        connection.sendall(_infer())
        status, body, response = _response(connection)
        assert status == 200
        assert json.loads(body)["outputs"][0]["data"] == [1.0, 2.0]
        assert response.getheader("Connection") is None


def test_a_head_that_came_before_may_have_another_body_and_another_head_may_follow(connect: Connect) -> None:
    connection = connect()
    for number in (1, 2, 3, 1):
        connection.sendall(_infer(_BODY.replace(b"[1,2]}", b"[%d,2]}" % number)))
        assert json.loads(_response(connection)[1])["outputs"][0]["data"] == [number, 2]
        connection.sendall(_LIVE)
        assert _response(connection)[1] == b""
        connection.sendall(_infer(model="nosuch"))
        assert _response(connection)[0] == 404
    twice = _infer() * 2
    connection.sendall(_infer())
    assert _response(connection)[0] == 200
    connection.sendall(twice[: len(twice) // 2 + 30])
    assert _response(connection)[0] == 200
    connection.sendall(twice[len(twice) // 2 + 30 :])
    assert _response(connection)[0] == 200


def test_a_chunked_request_is_not_taken_for_the_head_of_the_next_one(connect: Connect) -> None:
    connection = connect()
    request = b"POST /v2/repository/index HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    for ready in (b"true", b"false", b"1"):
        body = b'{"ready":%s}' % ready
        connection.sendall(request + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
        assert _response(connection)[0] == (400 if ready == b"1" else 200)


@pytest.mark.slow
def test_a_large_answer_can_be_the_last_one(core: Any, connect: Connect) -> None:
    core.models["ident"].run = lambda inputs: {"OUTPUT0": Tensor.of(np.zeros((1, 1 << 20), np.float32))}
    connection = connect()
    body = _BODY.replace(b"}]}", b'}],"parameters":{"binary_data_output":true}}')
    connection.sendall(_infer(body, extra=b"Connection: close\r\n"))
    status, content, _ = _response(connection)
    assert (status, len(content) > 4 << 20) == (200, True)
    assert _ends(connection)


def test_a_request_may_come_byte_by_byte(connect: Connect) -> None:
    connection = connect()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in _infer():
        connection.send(bytes([byte]))
    assert _response(connection)[0] == 200


def test_requests_sent_ahead_are_answered_in_order(connect: Connect) -> None:
    connection = connect()
    bodies = [_BODY.replace(b"[1,2]}", b"[%d,0]}" % number) for number in range(50)]
    connection.sendall(b"".join(map(_infer, bodies)))
    stream = connection.makefile("rb")
    answers = []
    for _ in bodies:
        lines = iter(stream.readline, b"\r\n")
        length = next(int(line.split(b":")[1]) for line in list(lines) if line.lower().startswith(b"content-length"))
        answers.append(json.loads(stream.read(length))["outputs"][0]["data"][0])
    assert answers == list(range(50))


def test_thousands_of_requests_in_one_packet_are_answered(connect: Connect) -> None:
    connection = connect()
    sender = threading.Thread(target=connection.sendall, args=(_LIVE * 5000,))
    sender.start()
    stream = connection.makefile("rb")
    assert sum(b"HTTP/1.1 200" in stream.readline() for _ in range(5000 * 4)) == 5000
    sender.join()


def test_a_chunked_body_is_put_together(connect: Connect) -> None:
    connection = connect()
    head = b"POST /v2/models/ident/infer HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (_BODY[:10], _BODY[10:11], _BODY[11:]))
    connection.sendall(head + chunks + b"0\r\n\r\n")
    assert _response(connection)[0] == 200


def test_a_client_that_asks_first_is_told_to_go_on(connect: Connect) -> None:
    connection = connect()
    request = _infer(extra=b"Expect: 100-continue\r\n")
    connection.sendall(request[: -len(_BODY)])
    assert connection.recv(1024) == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.sendall(_BODY)
    assert _response(connection)[0] == 200


def test_http_1_0_ends_the_connection_unless_asked_to_keep_it(connect: Connect) -> None:
    connection = connect()
    connection.sendall(b"GET /v2/health/live HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert _response(connection)[2].getheader("Connection") == "keep-alive"
    connection.sendall(b"GET /v2/health/live HTTP/1.0\r\n\r\n")
    assert _response(connection)[2].getheader("Connection") == "close"
    assert _ends(connection)


def test_a_client_can_have_the_connection_closed(connect: Connect) -> None:
    connection = connect()
    connection.sendall(_infer(extra=b"Connection: close\r\n"))
    status, _, response = _response(connection)
    assert (status, response.getheader("Connection")) == (200, "close")
    assert _ends(connection)


def test_an_answer_to_head_has_no_body(connect: Connect) -> None:
    connection = connect()
    connection.sendall(b"HEAD /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert _response(connection, "HEAD")[:2] == (405, b"")
    connection.sendall(_LIVE)
    assert _response(connection)[0] == 200


_WISH = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAA\r\n"


def test_an_upgrade_is_not_made(connect: Connect) -> None:
    connection = connect()
    connection.sendall(
        b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    )
    assert _response(connection)[0] == 200
    connection.sendall(_LIVE)
    assert _response(connection)[0] == 200


def test_who_wishes_for_another_protocol_is_answered_in_this_one(connect: Connect) -> None:
    # As Java's client does with the first request of each connection.
    connection = connect()
    request = _infer(extra=_WISH)
    connection.sendall(request * 300 + _LIVE)
    replies = connection.makefile("rb")
    for _ in range(300):
        status, body = _next(replies)
        assert status == 200
        assert json.loads(body)["outputs"]
    assert _next(replies) == (200, b"")


def test_the_body_of_a_request_that_wishes_for_another_protocol_may_come_in_pieces(connect: Connect) -> None:
    connection = connect()
    request = _infer(extra=_WISH)
    for byte in range(len(request)):
        connection.sendall(request[byte : byte + 1])
    assert _response(connection)[0] == 200


def test_a_large_body_of_such_a_request_comes_whole(connect: Connect) -> None:
    connection = connect()
    body = _BODY.replace(b"}]}", b"}]" + b" " * (1 << 20) + b"}")
    connection.sendall(_infer(body, extra=_WISH))
    assert _response(connection)[0] == 200


def test_a_tunnel_is_not_made_and_nothing_in_it_is_looked_at(connect: Connect) -> None:
    connection = connect()
    connection.sendall(b"CONNECT other:80 HTTP/1.1\r\nHost: other\r\n\r\n" + _LIVE)
    assert _response(connection)[0] == 405
    assert _ends(connection)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET\r\n\r\n",
        b"hello world this is not http\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http_is_refused_and_ends_only_its_own_connection(connect: Connect, garbage: bytes) -> None:
    connection = connect()
    connection.sendall(garbage)
    status, body, _ = _response(connection)
    assert status == 400
    assert json.loads(body)["error"].startswith("malformed HTTP request")
    assert _ends(connection)
    other = connect()
    other.sendall(_LIVE)
    assert _response(other)[0] == 200


def test_a_length_of_json_that_no_number_can_hold_is_refused(connect: Connect) -> None:
    for size in (len(_BODY), 1 << 20):
        connection = connect()
        body = _BODY.ljust(size)
        connection.sendall(_infer(body, extra=b"Inference-Header-Content-Length: %s\r\n" % (b"9" * 5000)))
        status, answer, _ = _response(connection)
        assert (status, b"inference header size should be in range" in answer) == (400, True)


@pytest.mark.parametrize("bomb", [b"a" * 2_000_000, b"X: y\r\n" * 200_000, b"X: " + b"y" * 2_000_000])
def test_endless_headers_are_refused(connect: Connect, bomb: bytes) -> None:
    connection = connect()
    threading.Thread(target=_send_all_or_fail, args=(connection, b"GET / HTTP/1.1\r\n" + bomb), daemon=True).start()
    assert _response(connection)[0] == 431
    assert _ends(connection)


def _send_all_or_fail(connection: socket.socket, data: bytes) -> None:
    try:
        connection.sendall(data)
    except OSError:
        return


def test_a_body_over_the_limit_is_refused_before_it_is_read(start: Any) -> None:
    connection = socket.create_connection(start(max_body=1000).bind(), timeout=60)
    connection.sendall(b"POST /v2/models/ident/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1001\r\n\r\n")
    status, body, response = _response(connection)
    assert (status, response.getheader("Connection")) == (400, "close")
    assert json.loads(body)["error"] == (
        "request JSON size of 1001 bytes exceeds the maximum allowed input size of 1000 bytes. Use "
        "--http-max-input-size to increase the limit."
    )
    connection.close()


def test_a_chunked_body_over_the_limit_is_refused(start: Any) -> None:
    """Whether its second chunk comes with the first or later: the path has a route, so the head is no reason."""
    head = b"POST /v2/models/ident/infer HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    first = b"3e8\r\n%s\r\n" % (b"x" * 1000)
    front: HttpFrontend = start(max_body=1000)
    for pieces in ([head + first + b"1\r\nx\r\n"], [head + first, b"1\r\nx\r\n"]):
        with socket.create_connection(front.bind(), timeout=60) as connection:
            for piece in pieces:
                connection.sendall(piece)
            status, body, _ = _response(connection)
        assert status == 400
        assert b"request JSON size of 1001 bytes exceeds" in body


def test_a_client_that_sends_an_oversized_body_to_its_end_still_reads_the_answer(start: Any) -> None:
    front: HttpFrontend = start(max_body=1 << 20)
    connection = http.client.HTTPConnection(*front.bind(), timeout=60)
    connection.request("POST", "/v2/models/ident/infer", bytes(32 << 20))
    assert connection.getresponse().status == 400
    connection.close()


def test_a_large_tensor_is_read_into_place_without_a_copy(core: Any, connect: Connect) -> None:
    values = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "INPUT0",
                    "datatype": "FP32",
                    "shape": [1, 1 << 20],
                    "parameters": {"binary_data_size": values.nbytes},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    connection = connect()
    for padding in range(3):  # wherever the JSON ends, the tensor is aligned
        text = head + b" " * padding
        extra = b"Inference-Header-Content-Length: %d\r\n" % len(text)
        connection.sendall(_infer(text + values.tobytes(), extra=extra))
        status, body, response = _response(connection)
        assert status == 200
        json_length = int(response.getheader("Inference-Header-Content-Length") or 0)
        assert np.array_equal(np.frombuffer(body[json_length:], np.float32), values)
        array = core.requests[-1].inputs["INPUT0"].array
        assert array.flags.aligned
        assert not array.flags.owndata
    connection.sendall(_infer())
    assert _response(connection)[0] == 200


@pytest.mark.slow
def test_a_request_sent_right_after_a_large_body_is_answered_too(connect: Connect) -> None:
    values = np.arange(1 << 18, dtype=np.float32)
    text = json.dumps(
        {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1 << 18], "data": values.tolist()}]}
    )
    connection = connect()
    sender = threading.Thread(target=connection.sendall, args=((_infer(text.encode()) + _infer()) * 2,))
    sender.start()
    stream = connection.makefile("rb")
    for expected in (1 << 18, 2, 1 << 18, 2):
        lines = list(iter(stream.readline, b"\r\n"))
        length = next(int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length"))
        assert len(json.loads(stream.read(length))["outputs"][0]["data"]) == expected
    sender.join()


def test_a_client_that_leaves_has_its_request_cancelled(core: Any, connect: Connect) -> None:
    connection = connect()
    connection.sendall(_infer(model="slow"))
    assert core.submitted.wait(60)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    other = connect()
    for _ in range(10_000):
        other.sendall(_LIVE)
        assert _response(other)[0] == 200
        if core.requests[-1].cancelled:
            return
    pytest.fail("the request was not cancelled")


@pytest.mark.parametrize("count", [1, 3])
def test_a_client_that_only_stops_sending_is_answered(connect: Connect, count: int) -> None:
    """F16: as `nc -N` does."""
    connection = connect()
    connection.sendall(_infer() * count)
    connection.shutdown(socket.SHUT_WR)
    replies = connection.makefile("rb")
    for _ in range(count):
        assert _next(replies)[0] == 200
    assert replies.read() == b"", "and the connection ends"


def test_a_client_that_stops_sending_is_waited_for_as_long_as_it_is_there(core: Any, connect: Connect) -> None:
    """A slow request is cancelled once its client has closed the other half as well: the server asks."""
    stays, leaves = connect(), connect()
    for connection in (stays, leaves):
        core.submitted.clear()
        connection.sendall(_infer(model="slow"))
        assert core.submitted.wait(60)
    of_stays, of_leaves = core.requests[-2:]
    stays.shutdown(socket.SHUT_WR)
    leaves.close()
    other = connect()
    deadline = time.monotonic() + 60
    while not of_leaves.cancelled:
        other.sendall(_LIVE)
        assert _response(other)[0] == 200
        assert time.monotonic() < deadline
    assert not of_stays.cancelled
    core.gate.set()
    with stays.makefile("rb") as replies:
        assert replies.readline() + replies.readline() == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert _next(replies)[0] == 200
        assert replies.read() == b""


def test_a_client_that_stops_sending_gets_its_stream(connect: Connect) -> None:
    connection = connect()
    body = b'{"INPUT0": "a"}'
    head = b"POST /v2/models/str/generate_stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    connection.sendall(head % len(body) + body)
    connection.shutdown(socket.SHUT_WR)
    with connection.makefile("rb") as replies:
        assert b'"OUTPUT0":"a"' in replies.read()


@pytest.mark.parametrize("sent", [b"", _infer()[:30], _infer()[:-1]], ids=["nothing", "half a head", "half a body"])
def test_nothing_is_owed_to_a_client_that_stops_sending_before_its_request_is_whole(
    core: Any, connect: Connect, sent: bytes
) -> None:
    connection = connect()
    connection.sendall(sent)
    connection.shutdown(socket.SHUT_WR)
    assert _ends(connection)
    assert not core.requests


def test_a_response_for_a_client_that_left_harms_nobody(core: Any, connect: Connect) -> None:
    leaver = connect()
    leaver.sendall(_infer(model="slow"))
    assert core.submitted.wait(60)
    leaver.close()
    core.gate.set()
    other = connect()
    other.sendall(_infer())
    assert _response(other)[0] == 200


@pytest.mark.slow
def test_a_slow_reader_is_waited_for_and_does_not_hold_up_others(core: Any, start: Any) -> None:
    big = Tensor.of(np.zeros((1, 1 << 20), np.float32))
    core.models["ident"].run = lambda inputs: {"OUTPUT0": big}
    front: HttpFrontend = start()
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.settimeout(60)
    slow.connect(front.bind())
    body = _BODY.replace(b"}]}", b'}],"parameters":{"binary_data_output":true}}')
    slow.sendall(_infer(body) * 10)
    other = socket.create_connection(front.bind(), timeout=60)
    other.sendall(_LIVE)
    assert _response(other)[0] == 200
    assert len(core.requests) < 10, "requests were executed although their answers could not be sent"
    stream = slow.makefile("rb")
    for _ in range(10):
        lines = list(iter(stream.readline, b"\r\n"))
        length = next(int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length"))
        assert len(stream.read(length)) == length
    slow.close()
    other.close()


def test_a_client_that_never_reads_its_answer_is_given_up(core: Any, start: Any) -> None:
    big = Tensor.of(np.zeros((1, 8 << 20), np.float32))
    core.models["ident"].run = lambda inputs: {"OUTPUT0": big}
    front: HttpFrontend = start(stall_seconds=0.05)
    client = socket.create_connection(front.bind(), timeout=60)
    client.sendall(_infer(_BODY.replace(b"}]}", b'}],"parameters":{"binary_data_output":true}}')))
    assert client.recv(15) == b"HTTP/1.1 200 OK"
    assert front._running is not None
    connections = front._running.connections
    asyncio.run_coroutine_threadsafe(connections.empty(), front._running.loop).result(60)
    client.close()


def test_a_request_that_stops_halfway_is_given_up(start: Any) -> None:
    front: HttpFrontend = start(stall_seconds=0.05)
    idle = socket.create_connection(front.bind(), timeout=60)
    idle.sendall(_LIVE)
    assert _response(idle)[0] == 200
    stalled = socket.create_connection(front.bind(), timeout=60)
    stalled.sendall(_infer()[:-5])
    assert _ends(stalled)
    large = socket.create_connection(front.bind(), timeout=60)
    large.sendall(b"POST /v2/models/ident/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000000\r\n\r\nabc")
    assert _ends(large)
    idle.sendall(_LIVE)
    assert _response(idle)[0] == 200
    for connection in (idle, stalled, large):
        connection.close()


# When answers are written: at once while nobody else can have asked, else when all that came together is answered.


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
