"""Responses as bytes on the wire."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from repoagent_server.codec.binary import Buffer
from repoagent_server.http.messages import Header, Response

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

LAST_CHUNK: Final = b"0\r\n\r\n"

_OK: Final = 200
_BUSY: Final = (429, 503)
_RETRY: Final = (b"Retry-After", b"1")
_STATUS_LINES: Final = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}


def render(
    response: Response, *, close: bool, announce_keep_alive: bool, bodiless: bool, request_id: bytes | None = None
) -> list[Buffer]:
    """The head and the body of ``response``, as pieces to be written one after another.

    With ``close`` the connection ends after it. With ``announce_keep_alive`` an HTTP/1.0 client learns that it stays.
    An answer to HEAD is ``bodiless``. The client's ``request_id`` goes back to it.
    """
    connection = b"close" if close else b"keep-alive" if announce_keep_alive else b""
    head = _head(
        response, connection, b"Content-Length: %d" % (len(response.body) + sum(map(len, response.parts))), request_id
    )
    if bodiless:
        return [head]
    return [head + response.body, *response.parts]


def render_head(response: Response, *, close: bool, chunked: bool, request_id: bytes | None = None) -> bytes:
    """The head of a response whose body follows in pieces: as chunks, or until the connection ends."""
    framing = b"Transfer-Encoding: chunked" if chunked else b""
    return _head(response, b"close" if close else b"", framing, request_id)


def chunk(piece: bytes) -> bytes:
    """A piece of such a body."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def headers_of(response: Response) -> Sequence[Header]:
    """Those of ``response``, and of one that a client should ask for again, when."""
    headers = response.headers
    if response.status not in _BUSY or any(name.lower() == b"retry-after" for name, _ in headers):
        return headers
    return [*headers, _RETRY]


def _head(response: Response, connection: bytes, framing: bytes, request_id: bytes | None) -> bytes:
    lines = [_STATUS_LINES[response.status], b"Content-Type: ", response.content_type, b"\r\n"]
    for name, value in response.headers if response.status == _OK else headers_of(response):
        lines += (name, b": ", value, b"\r\n")
    if request_id is not None:
        lines += (b"X-Request-Id: ", request_id, b"\r\n")
    if connection:
        lines += (b"Connection: ", connection, b"\r\n")
    if framing:
        lines += (framing, b"\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)
