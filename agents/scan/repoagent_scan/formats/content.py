"""The bytes of a file, without a map of it: a look at a mapped file that another process cut short ends the server."""

import os
from typing import Final, Protocol, overload

from repoagent_scan.formats.format import MalformedError

_SMALL: Final = 64 << 20
"""Files up to this size are read as a whole."""
_WINDOW: Final = 64 << 10


class Buffer(Protocol):
    """What is looked at: ``bytes``, or a file that is read where it is looked at."""

    def __len__(self) -> int: ...

    @overload
    def __getitem__(self, place: int, /) -> int: ...

    @overload
    def __getitem__(self, place: slice, /) -> bytes: ...


def read_content(fd: int) -> Buffer:
    """The content of the open file ``fd``, with the size that it has now. Large ones need ``fd`` while they are used.

    Raises:
        MalformedError: the file became shorter, here or later, when a part is looked at that is not there.
        OSError: it cannot be read.
    """
    size = os.fstat(fd).st_size
    return _read(fd, 0, size) if size <= _SMALL else _File(fd, size)


class _File:
    """A large file: its structure is read in windows, and what lies between is not read at all."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self._size = size
        self._start = 0
        self._window = b""

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, place: int, /) -> int: ...

    @overload
    def __getitem__(self, place: slice, /) -> bytes: ...

    def __getitem__(self, place: int | slice, /) -> int | bytes:
        if isinstance(place, slice):
            start, stop, _ = place.indices(self._size)
            return _read(self._fd, start, max(0, stop - start))
        offset = place - self._start
        if not 0 <= offset < len(self._window):
            if not 0 <= place < self._size:
                raise IndexError(place)
            self._window = _read(self._fd, place, min(_WINDOW, self._size - place))
            self._start, offset = place, 0
        return self._window[offset]


def _read(fd: int, start: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.pread(fd, size, start)
        if not part:
            raise MalformedError("the file became shorter while it was read")
        parts.append(part)
        start += len(part)
        size -= len(part)
    return b"".join(parts)
