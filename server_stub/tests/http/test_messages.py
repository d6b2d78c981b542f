"""Heads that are written by a prepared format are those that are put together line by line."""

from collections.abc import Callable
from http import HTTPStatus

import pytest
from repoagent_server.http import asgi
from repoagent_server.http.messages import JSON, OCTETS, Response, render, render_head

_LENGTH = (b"Inference-Header-Content-Length", b"7")


@pytest.mark.parametrize(
    "response",
    [
        Response(200, b"{}"),
        Response(200, b'{"a":1}', OCTETS, [_LENGTH], [b"\x01\x02", memoryview(b"\x03")]),
        Response(200, b"", OCTETS, [_LENGTH]),
    ],
    ids=["json", "binary", "empty"],
)
def test_a_prepared_head_is_the_same_as_one_put_together(response: Response) -> None:
    def lines(close: bool) -> list[bytes]:
        pieces = render(response, close=close, announce_keep_alive=False, bodiless=False)
        return b"".join(pieces).split(b"\r\n")

    # An answer that ends its connection is put together; it has one line more.
    assert lines(close=False) == [line for line in lines(close=True) if line != b"Connection: close"]


def test_other_answers_keep_all_of_their_headers() -> None:
    response = Response(200, b"x", JSON, [(b"Content-Encoding", b"gzip")])
    (piece,) = render(response, close=False, announce_keep_alive=False, bodiless=False)
    assert b"\r\nContent-Encoding: gzip\r\n" in piece
    assert b"\r\nContent-Length: 1\r\n" in piece


def _whole(response: Response) -> bytes:
    return bytes(render(response, close=False, announce_keep_alive=False, bodiless=False)[0])


def _in_pieces(response: Response) -> bytes:
    return render_head(response, close=False, chunked=True)


def _in_another_application(response: Response) -> bytes:
    start = next(asgi._messages(response, "POST"))
    return b"".join(b"%b: %b\r\n" % header for header in start["headers"])


@pytest.mark.parametrize("write", [_whole, _in_pieces, _in_another_application])
def test_every_429_and_503_says_when_to_come_again(write: Callable[[Response], bytes]) -> None:
    """F22: whatever makes the answer: these three are the only ways out."""
    for status in HTTPStatus:
        head = write(Response(status.value, b"{}")).lower()
        assert (b"retry-after: 1\r\n" in head) == (status in (429, 503)), status
        own = write(Response(status.value, b"{}", headers=[(b"Retry-After", b"30")])).lower()
        assert own.count(b"retry-after: ") == 1, status
        assert b"retry-after: 30\r\n" in own, status
