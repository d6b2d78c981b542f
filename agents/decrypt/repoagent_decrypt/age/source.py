"""A small read buffer that can look ahead, and knows armor when it sees it."""

from typing import Final, Protocol

_BLOCK: Final = 64 << 10


class ByteSource(Protocol):
    """Anything to read bytes from."""

    def read(self, size: int = -1, /) -> bytes | None:
        """At most ``size`` bytes; empty at the end."""


class PeekReader:
    """Buffers ``stream`` without ever closing it."""

    def __init__(self, stream: ByteSource) -> None:
        self._stream = stream
        self._buffer = b""
        self._start = 0

    def peek(self, size: int) -> bytes:
        """The next ``size`` bytes, fewer at the end of the stream; they stay unread."""
        self._fill(size)
        return self._buffer[self._start : self._start + size]

    def read(self, size: int = -1, /) -> bytes:
        """At most ``size`` bytes (all if negative); empty at the end."""
        if size < 0:
            return b"".join(iter(lambda: self.read(_BLOCK), b""))
        if self._start < len(self._buffer):
            return self._take(size)
        return self._stream.read(size) or b""

    def readline(self, limit: int = -1, /) -> bytes:
        """Bytes up to and with the next newline, at most ``limit`` of them."""
        pieces: list[bytes] = []
        while limit:
            if self._start == len(self._buffer):
                self._fill(_BLOCK)
            size = self._buffer.find(b"\n", self._start) + 1 - self._start
            size = size if size > 0 else _BLOCK
            piece = self._take(size if limit < 0 else min(size, limit))
            pieces.append(piece)
            limit -= len(piece)
            if piece.endswith(b"\n") or not piece:
                break
        return b"".join(pieces)

    def _fill(self, size: int) -> None:
        have = len(self._buffer) - self._start
        if have >= size:
            return
        pieces = [self._buffer[self._start :]]
        while have < size and (block := self._stream.read(size - have)):
            pieces.append(block)
            have += len(block)
        self._buffer = b"".join(pieces)
        self._start = 0

    def _take(self, size: int) -> bytes:
        data = self._buffer[self._start : self._start + size]
        self._start += len(data)
        return data


def read_exactly(source: ByteSource, size: int) -> bytes:
    """``size`` bytes, fewer only at the end of the stream."""
    data = source.read(size) or b""
    if len(data) == size or not data:
        return data
    pieces = [data]
    left = size - len(data)
    while left and (piece := source.read(left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)
