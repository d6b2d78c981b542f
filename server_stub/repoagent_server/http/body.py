"""Bodies: how long one may be, and large ones read straight into the memory that the tensors will be views of."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from repoagent_server.http.messages import Frame, Header
from repoagent_server.shared.request_id import is_valid
from repoagent_server.shared.reserve import MAPPED_PAGE, Reserve

DEFAULT_MAX_BODY: Final = 1 << 26
"""Triton's default of --http-max-input-size, in bytes."""

LARGE_BODY: Final = 1 << 18
"""Bodies from this size are read into memory of their own instead of in pieces."""

_LARGE_PAGES: Final = 1 << 22
"""Bytes from which on NumPy asks for pages of 2 MiB: a body of which little has come takes one."""
_ALIGNMENT: Final = 64
_DIGITS: Final = 18
"""That a length can have which some memory has."""


def too_large(size: int, limit: int) -> str:
    """The answer to a client whose body has ``size`` bytes (or that many so far)."""
    return (
        f"request JSON size of {size} bytes exceeds the maximum allowed input size of {limit} bytes. Use "
        "--http-max-input-size to increase the limit."
    )


def frame_of(headers: Sequence[Header]) -> Frame:
    """Read the headers that frame the bodies or name who asks, in one pass.

    The parser has already refused what is malformed.
    """
    frame = Frame()
    for name, value in headers:
        keys = _FRAMING.get(len(name))
        if keys is not None and (key := name.lower()) in keys:
            _note(frame, key, value)
    return frame


_FRAMING: Final = {
    4: (b"host",),
    6: (b"expect", b"origin"),
    12: (b"x-request-id",),
    14: (b"content-length", b"sec-fetch-site"),
    15: (b"accept-encoding",),
    16: (b"content-encoding",),
    17: (b"transfer-encoding",),
    31: (b"inference-header-content-length",),
}
"""By their length, which nearly all other headers do not have."""


_UNKNOWN_CODING: Final = ("of transfer codings only 'chunked' is supported", 501)
_KEPT: Final = {
    b"inference-header-content-length": "json_length",
    b"content-encoding": "encoding",
    b"sec-fetch-site": "fetch_site",
}
"""Headers whose last value is kept as sent, and where."""


def _note(frame: Frame, key: bytes, value: bytes) -> None:
    if key == b"content-length":
        frame.length = int(value)
    elif key in _KEPT:
        setattr(frame, _KEPT[key], value)
    elif key == b"accept-encoding":
        if frame.accepts is None:
            frame.accepts = value
    elif key == b"host":
        frame.fault = frame.fault if frame.host is None else ("the request has more than one Host header", 400)
        frame.host = value
    elif key == b"transfer-encoding":
        frame.fault = frame.fault if value.lower() == b"chunked" else _UNKNOWN_CODING
    elif key == b"origin":
        frame.origin = value if frame.origin is None else b"%b, %b" % (frame.origin, value)
    elif key == b"x-request-id":
        frame.request_id = value if is_valid(value) else None
    else:
        frame.expects_continue = value.lower() == b"100-continue"


class LargeBody(asyncio.BufferedProtocol):
    """Takes a connection over until a body of known length is complete, then gives it back.

    The kernel copies into the final memory, placed so that the tensors behind the JSON are aligned; nothing is copied
    again. Pages are only touched as data arrives, and counted, so announcing much and sending little costs little.
    """

    def __init__(
        self,
        frame: Frame,
        first: Sequence[bytes],
        owner: asyncio.Protocol,
        done: Callable[[memoryview], None],
        refuse: Callable[[], None],
        reserve: Reserve,
    ) -> None:
        """``refuse`` is called instead of ``done`` once the reserve has no room for what has come."""
        start = -json_length(frame) % _ALIGNMENT
        self._page = MAPPED_PAGE if frame.length >= _LARGE_PAGES else 1
        memory = np.empty(start + frame.length + _ALIGNMENT, np.uint8)
        start += -memory.ctypes.data % _ALIGNMENT
        self._body = memoryview(memory)[start : start + frame.length]  # type: ignore[arg-type]
        self._hold = reserve.hold(memory)
        self._owner = owner
        self._done = done
        self._refuse = refuse
        self._filled = 0
        for piece in first:
            self._body[self._filled : self._filled + len(piece)] = piece
            self._filled += len(piece)

    @property
    def filled(self) -> int:
        """How many bytes have come."""
        return self._filled

    def lags(self) -> bool:
        return self._hold.lags(self._filled)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint  # however little is asked for, there is room for all that is missing, and no more
        return self._body[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        body = self._body
        if not self._hold.resize(-(-self._filled // self._page) * self._page):
            self.drop()
            self._refuse()
        elif self._filled == len(body):
            self.drop()
            self._done(body)

    def drop(self) -> None:
        """Let go of the memory: uvloop keeps what it calls of a protocol, also when the connection has another one."""
        self._body = memoryview(b"")

    def connection_lost(self, exc: Exception | None) -> None:
        self.drop()
        self._owner.connection_lost(exc)

    def eof_received(self) -> bool | None:
        return self._owner.eof_received()

    def pause_writing(self) -> None:
        self._owner.pause_writing()

    def resume_writing(self) -> None:
        self._owner.resume_writing()


def json_length(frame: Frame) -> int:
    """How many bytes the JSON has; 0 where the header makes no sense, which the route reports."""
    text = frame.json_length or b""
    return int(text) if text.isdigit() and len(text) <= _DIGITS else 0
