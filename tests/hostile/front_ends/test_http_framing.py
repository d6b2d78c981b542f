"""Forms of HTTP that make two readers see two things: each is refused and ends its connection, or is one request."""

import re
import socket
from collections.abc import Iterator
from typing import Final

import pytest

from tests.hostile.front_ends.conftest import Ways

_HOST: Final = b"Host: localhost\r\n"
_HIDDEN: Final = b"GET /v2/models/text/config HTTP/1.1\r\n" + _HOST + b"\r\n"
"""A request inside of another; its answer has the name of an output that no other answer has."""
_ANSWER_TO_HIDDEN: Final = b'"output"'
_LAST: Final = b"GET /v2/health/live HTTP/1.1\r\n" + _HOST + b"Connection: close\r\n\r\n"
_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3}) ")


def _get(target: bytes = b"/v2", headers: bytes = b"", version: bytes = b"HTTP/1.1") -> bytes:
    return b"GET %b %b\r\n%b%b\r\n" % (target, version, _HOST, headers)


def _post(headers: bytes, body: bytes = b"") -> bytes:
    return b"POST /v2/repository/index HTTP/1.1\r\n%b%b\r\n%b" % (_HOST, headers, body)


_CHUNKED: Final = b"Transfer-Encoding: chunked\r\n"
_LENGTH_OF_HIDDEN: Final = b"Content-Length: %d\r\n" % len(_HIDDEN)
_END: Final = b"0\r\n\r\n"


def _chunks(first: bytes) -> bytes:
    return _post(_CHUNKED, first + b"\r\n{}\r\n" + _END)


REFUSED: Final = {
    "length and chunks": _post(_LENGTH_OF_HIDDEN + _CHUNKED, _END + _HIDDEN),
    "chunks and length": _post(_CHUNKED + b"Content-Length: 5\r\n", _END + _HIDDEN),
    "two lengths that differ": _post(b"Content-Length: 0\r\n" + _LENGTH_OF_HIDDEN, _HIDDEN),
    "two lengths that agree": _post(b"Content-Length: 2\r\n" * 2, b"{}"),
    "lengths in a list": _post(b"Content-Length: 0, %d\r\n" % len(_HIDDEN), _HIDDEN),
    "a length with a sign": _post(b"Content-Length: +2\r\n", b"{}"),
    "a negative length": _post(b"Content-Length: -1\r\n", b"{}"),
    "a length in hexadecimal": _post(b"Content-Length: 0x2\r\n", b"{}"),
    "a length with an underscore": _post(b"Content-Length: 1_0\r\n", b"0123456789"),
    "a length above 64 bits": _post(b"Content-Length: 18446744073709551618\r\n", b"{}"),
    "a length above the limit": _post(b"Content-Length: 9223372036854775807\r\n", b"{}"),
    "an empty length": _post(b"Content-Length: \r\n", b"{}"),
    "an encoding that is not known": _post(b"Transfer-Encoding: xchunked\r\n", _END + _HIDDEN),
    "an encoding after chunks": _post(b"Transfer-Encoding: chunked, identity\r\n", _END + _HIDDEN),
    "an encoding in quotes": _post(b'Transfer-Encoding: "chunked"\r\n', _END + _HIDDEN),
    "an encoding with a vertical tab": _post(b"Transfer-Encoding: \x0bchunked\r\n", _END + _HIDDEN),
    "a space before the colon of an encoding": _post(b"Transfer-Encoding : chunked\r\n", _END + _HIDDEN),
    "a tab before the colon of a length": _post(b"Content-Length\t: 2\r\n", b"{}"),
    "an encoding on a folded line": _post(b"Transfer-Encoding:\r\n chunked\r\n", _END + _HIDDEN),
    "a length on a folded line": _post(b"Content-Length:\r\n 2\r\n", b"{}"),
    "a folded header": _get(headers=b"X-A: b\r\n c\r\n"),
    "a header that begins with a space": _get(headers=b" X-A: b\r\n"),
    "a space in a name": _get(headers=b"X A: b\r\n"),
    "no name": _get(headers=b": b\r\n"),
    "no colon": _get(headers=b"X-A\r\n"),
    "NUL in a value": _get(headers=b"X-A: b\0c\r\n"),
    "NUL in a name": _get(headers=b"X\0A: b\r\n"),
    "CR alone in a value": _get(headers=b"X-A: b\rX-B: c\r\n"),
    "NUL in the target": _get(b"/v2\0"),
    "a space in the target": _get(b"/v2 /models"),
    "a chunk with a negative size": _chunks(b"-2"),
    "a chunk with 0x": _chunks(b"0x2"),
    "a chunk with a sign": _chunks(b"+2"),
    "a chunk of more than 64 bits": _chunks(b"10000000000000002"),
    "a chunk without a size": _chunks(b""),
    "a chunk longer than its size": _post(_CHUNKED, b"1\r\n{}\r\n" + _END),
    "a space before a chunk's size": _chunks(b" 2"),
    "a chunk that ends in LF": _post(_CHUNKED, b"2\n{}\n" + _END),
    "a length behind the last chunk": _post(_CHUNKED, b"2\r\n{}\r\n0\r\nContent-Length: 9\r\n\r\n"),
    "a long request line": _get(b"/" + b"a" * (1 << 17)),
    "a long header": _get(headers=b"X-A: " + b"a" * (1 << 17) + b"\r\n"),
    "many headers": _get(headers=b"".join(b"X-%d: aaaaaaaaaaaaaaaa\r\n" % n for n in range(1 << 13))),
    "HTTP/0.9": b"GET /v2\r\n\r\n",
    "HTTP/2 without the rest": _get(version=b"HTTP/2.0"),
    "HTTP/1.2": _get(version=b"HTTP/1.2"),
    "HTTP in lower case": _get(version=b"http/1.1"),
    "a method in lower case": b"get /v2 HTTP/1.1\r\n" + _HOST + b"\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "CONNECT": b"CONNECT localhost:80 HTTP/1.1\r\n" + _HOST + b"\r\n" + _HIDDEN,
    "the head of TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
}

# Triton's status for a body that is not valid JSON is 500.
ONE: Final = {
    "a body that is a request": (_post(_LENGTH_OF_HIDDEN, _HIDDEN), 500),
    "a chunk that is a request": (_post(_CHUNKED, b"%x\r\n%b\r\n" % (len(_HIDDEN), _HIDDEN) + _END), 500),
    "GET with a body that is a request": (_get(headers=_LENGTH_OF_HIDDEN) + _HIDDEN, 200),
    "an extension of a chunk": (_chunks(b'2;a=b;c="d"'), 200),
    "zeros before a chunk's size": (_chunks(b"0000000000000000002"), 200),
    "fields behind the last chunk": (_post(_CHUNKED, b"2\r\n{}\r\n0\r\nHost: evil.example\r\nX-A: b\r\n\r\n"), 200),
    "zeros before a length": (_post(b"Content-Length: 0002\r\n", b"{}"), 200),
    "chunked in upper case": (_post(b"Transfer-Encoding: CHUNKED\r\n", b"2\r\n{}\r\n" + _END), 200),
    "a wish for another protocol": (_get(headers=b"Connection: Upgrade\r\nUpgrade: h2c\r\n"), 200),
    "HTTP/1.0 that stays": (_get(headers=b"Connection: keep-alive\r\n", version=b"HTTP/1.0"), 200),
    "the whole address as target": (_get(b"http://localhost/v2"), 200),
    "the whole address of an unknown model": (_get(b"http://localhost/v2/models/unknown"), 404),
    "a slash in a name, encoded": (_get(b"/v2%2Fmodels%2Ftext/config"), 404),
    "dots": (_get(b"/v2/x/../models/text/config"), 404),
    "dots, encoded": (_get(b"/v2/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd"), 404),
    "line ends in the target, encoded": (_get(b"/v2%0d%0aX:%20y"), 404),
    "NUL in a name, encoded": (_get(b"/v2/models/text%00"), 404),
    "half of an escape": (_get(b"/v2/models/%2"), 404),
    "a star as target": (b"OPTIONS * HTTP/1.1\r\n" + _HOST + b"\r\n", 404),
}


def _answers(ways: Ways, *sent: bytes) -> tuple[list[int], bytes]:
    """Every status that comes back until the server ends the connection, and all its bytes."""
    with socket.create_connection(ways.address, timeout=60) as connection:
        received = b"".join(_exchange(connection, b"".join(sent)))
    return [int(status) for status in _STATUS.findall(received)], received


def _exchange(connection: socket.socket, data: bytes) -> Iterator[bytes]:
    connection.sendall(data)
    while piece := connection.recv(1 << 16):
        yield piece


@pytest.fixture(autouse=True)
def _answers_others(ways: Ways) -> Iterator[None]:
    """After each form a good request on a new connection is answered."""
    yield
    statuses, _ = _answers(ways, _LAST)
    assert statuses == [200]


@pytest.mark.parametrize("form", REFUSED.values(), ids=REFUSED)
def test_a_form_that_can_be_read_in_two_ways_ends_its_connection(ways: Ways, form: bytes) -> None:
    statuses, received = _answers(ways, form, _LAST)
    assert len(statuses) == 1, received
    assert 400 <= statuses[0] <= 501
    assert _ANSWER_TO_HIDDEN not in received


@pytest.mark.parametrize("codings", [b"gzip, chunked", b"gzip", b"xchunked"])
def test_a_transfer_coding_that_is_not_supported_is_said_to_be_that(ways: Ways, codings: bytes) -> None:
    """F17: it was accepted and ignored."""
    statuses, _ = _answers(ways, _post(b"Transfer-Encoding: %b\r\n" % codings, _END + _HIDDEN), _LAST)
    assert statuses == [501]


@pytest.mark.parametrize(("form", "status"), ONE.values(), ids=ONE)
def test_any_other_form_is_exactly_one_request(ways: Ways, form: bytes, status: int) -> None:
    statuses, received = _answers(ways, form, _LAST)
    assert statuses == [status, 200], received
    assert _ANSWER_TO_HIDDEN not in received


def test_what_is_hidden_in_these_forms_would_show(ways: Ways) -> None:
    """Otherwise the tests above would find nothing."""
    statuses, received = _answers(ways, _get(), _HIDDEN, _LAST)
    assert statuses == [200] * 3
    assert _ANSWER_TO_HIDDEN in received


@pytest.mark.parametrize("form", ["GET /v2 HTTP/1.1\nHost: localhost\n\n", "GET /v2 HTTP/1.1\r\nHost: localhost\r\n\n"])
def test_lines_that_end_in_lf_are_one_request_or_none(ways: Ways, form: str) -> None:
    statuses, received = _answers(ways, form.encode(), _LAST)
    assert statuses in ([200, 200], [400]), received
