"""Which bytes of one file are here, between the threads that read it and the one that hashes it."""

import threading
from collections.abc import Iterable
from typing import Final

from repoagent.storage.transfer.download_context import DownloadContext
from repoagent.storage.transfer.partial_file import CHUNK, PartialFile
from repoagent.storage.transfer.streams import SEGMENT

__all__ = ["ReceivedRanges"]

_SPAN: Final = SEGMENT // CHUNK


class ReceivedRanges:
    """The chunks of a file of ``size`` bytes. Each is counted once, when it comes or because it was here."""

    def __init__(self, into: PartialFile, size: int, context: DownloadContext) -> None:
        self._into = into
        self._context = context
        self.size: Final = size
        self.chunks: Final = -(-size // CHUNK)
        self._next = 0
        self._counted: set[int] = set()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._count(chunk for chunk in range(self.chunks) if into.has(chunk))

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return self.first_missing(0) >= self.size

    @property
    def failed(self) -> bool:
        """Whether a reader gave up, so that the others may."""
        return self._error is not None

    def first_missing(self, position: int) -> int:
        """Where the first chunk that is not here begins, from ``position`` on."""
        chunk = position // CHUNK
        while chunk < self.chunks and self._into.has(chunk):
            chunk += 1
        return max(position, chunk * CHUNK)

    def take(self) -> tuple[int, int] | None:
        """The next bytes that nobody brought or took, from and to; None when there are none."""
        with self._changed:
            first = self.first_missing(self._next * CHUNK) // CHUNK
            end = first
            while end < min(self.chunks, first + _SPAN) and not self._into.has(end):
                end += 1
            self._next = end
            if first >= self.chunks or self._error is not None:
                return None
            return first * CHUNK, min(end * CHUNK, self.size)

    def arrived(self, chunk: int) -> None:
        """All bytes of ``chunk`` were written."""
        with self._changed:
            self._into.mark(chunk)
            self._count([chunk])
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Let the one that waits raise ``error``, and give the readers no more."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def wait(self, chunk: int) -> int:
        """Wait for ``chunk``; its length.

        Raises:
            CancelledError: the download was given up.
            BaseException: what a reader failed with.
        """
        with self._changed:
            while not self._into.has(chunk):
                if self._error is not None:
                    raise self._error
                self._changed.wait(0.2)
                self._context.check()
        return self._length(chunk)

    def _count(self, chunks: Iterable[int]) -> None:
        for chunk in chunks:
            if chunk not in self._counted:
                self._counted.add(chunk)
                self._context.count(self._length(chunk))

    def _length(self, chunk: int) -> int:
        return min(CHUNK, self.size - chunk * CHUNK)
