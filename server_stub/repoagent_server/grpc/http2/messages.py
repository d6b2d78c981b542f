"""gRPC's messages in the bytes of a stream: put together, and compressed or not."""

import struct
import zlib
from collections.abc import Sequence
from typing import Final

from repoagent.errors import UnavailableError
from repoagent_server.codec.binary import Buffer
from repoagent_server.shared.reserve import HELD_FLAG, WORTH_COUNTING, Memory, Reserve, inflate

PREFIX_BYTES: Final = 5
_SIZE: Final = struct.Struct(">I")

RESOURCE_EXHAUSTED: Final = 8
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13

CODINGS: Final = {b"identity": 0, b"deflate": zlib.MAX_WBITS, b"gzip": zlib.MAX_WBITS + 16}
"""How messages may be compressed, by the name of the header: window bits for zlib."""
_LEVELS: Final = {1: 1, 2: 6, 3: 9}
HELD: Final = f"too much of unfinished requests is held ({HELD_FLAG})"


class MessageFault(Exception):
    """A message ends its call: the status, and its text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Assembly:
    """The messages of one stream, from pieces of any length.

    A message is put together in memory that grows as its bytes come, not by what its prefix announces.
    """

    __slots__ = ("_body", "_compressed", "_limit", "_prefix", "_size")

    def __init__(self, limit: int) -> None:
        """``limit``: the largest message; -1 for none."""
        self._limit = limit
        self._prefix = b""
        self._body: Memory | None = None
        self._size = 0
        self._compressed = False

    @property
    def held(self) -> int:
        """How many bytes of an unfinished message there are."""
        return len(self._prefix) + (len(self._body) if self._body is not None else 0)

    def feed(self, data: bytes, start: int, stop: int) -> list[tuple[Buffer, bool]]:
        """The messages that ``data[start:stop]`` completes, each with whether it is compressed.

        Raises:
            MessageFault: one is too large, or makes no sense.
        """
        whole = stop - start - PREFIX_BYTES
        if self._body is None and not self._prefix and whole >= 0 and not data[start]:
            fits = self._limit < 0 or whole <= self._limit
            if fits and _SIZE.unpack_from(data, start + 1)[0] == whole:  # nearly always: one message and no more
                if whole < WORTH_COUNTING:
                    return [(data[start + PREFIX_BYTES : stop], False)]
                return [(Memory(memoryview(data)[start + PREFIX_BYTES : stop]), False)]
        found: list[tuple[Buffer, bool]] = []
        view = memoryview(data)
        while True:
            if self._body is None:
                taken = min(PREFIX_BYTES - len(self._prefix), stop - start)
                self._prefix += view[start : start + taken]
                start += taken
                if len(self._prefix) < PREFIX_BYTES:
                    return found
                self._begin()
            body = self._body
            assert body is not None
            taken = min(self._size - len(body), stop - start)
            body += view[start : start + taken]
            start += taken
            if len(body) < self._size:
                return found
            found.append((body, self._compressed))
            self._body, self._prefix = None, b""

    def _begin(self) -> None:
        compressed = self._prefix[0]
        if compressed > 1:
            raise MessageFault(INTERNAL, "a message is neither compressed nor not")
        self._compressed = bool(compressed)
        (self._size,) = _SIZE.unpack_from(self._prefix, 1)
        if 0 <= self._limit < self._size:
            raise too_large("Received message", self._size, self._limit)
        self._body = Memory()
        self._prefix = b""


def too_large(what: str, size: int, limit: int) -> MessageFault:
    """The text is that of gRPC's library in C."""
    return MessageFault(RESOURCE_EXHAUSTED, f"SERVER: {what} larger than max ({size} vs. {limit})")


def _opens_too_large(limit: int) -> MessageFault:
    return MessageFault(RESOURCE_EXHAUSTED, f"SERVER: Received message after decompression larger than max ({limit})")


def decompress(data: Buffer, coding: bytes, limit: int, reserve: Reserve) -> Memory:
    """A message as it was before its compression, counted as long as it is in memory.

    Raises:
        MessageFault: it is larger than ``limit`` (-1 for none), or cannot be read, or ``reserve`` has no room for it.
    """
    bits = CODINGS.get(coding)
    if not bits:
        raise MessageFault(INTERNAL, "a message is compressed, and its call names no compression")
    worker, into = zlib.decompressobj(bits), Memory()
    try:
        used = inflate(worker, memoryview(data), into, reserve.hold(into), limit, lambda: _opens_too_large(limit))
    except UnavailableError:
        raise MessageFault(RESOURCE_EXHAUSTED, HELD) from None
    except zlib.error:
        raise MessageFault(INTERNAL, "a message cannot be decompressed") from None
    if not worker.eof or used < len(data):
        raise MessageFault(INTERNAL, "a message cannot be decompressed")
    return into


def compress(parts: Sequence[Buffer], level: int) -> bytes:
    """A message with gzip. ``level``: 1 to 3."""
    worker = zlib.compressobj(_LEVELS[level], wbits=CODINGS[b"gzip"])
    return b"".join([*map(worker.compress, parts), worker.flush()])
