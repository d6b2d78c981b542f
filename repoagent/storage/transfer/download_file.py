"""Bringing one file here: in ranges where the source gives them, its digest computed while the bytes arrive."""

import errno
import logging
import os
import threading
from collections.abc import Iterable
from typing import Final

from repoagent.errors import (
    FULL_DISK,
    CancelledError,
    InvalidArgumentError,
    StoreUnavailableError,
    UnavailableError,
    described,
    full_disk,
)
from repoagent.storage.transfer.partial_file import CHUNK, PartialFile
from repoagent.storage.transfer.streams import (
    SEGMENT,
    ByteStream,
    ChangedError,
    Digester,
    DownloadContext,
    RemoteFile,
    WrongDigestError,
)
from repoagent.storage.workspaces.process_dir import check_space, free_bytes
from repoagent.web import WebError

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
        """The next bytes that no one brought or took, from and to; None when there are none."""
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
        """Wait for ``chunk``; its length. Raises ``CancelledError``, or what a reader failed with."""
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


_ATTEMPTS: Final = 5
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
_OUR_DISK: Final = FULL_DISK | {errno.EROFS, errno.EFBIG}
_LATER: Final = frozenset({0, 408, 425, 429})
"""What a server that may answer another time reports, besides its own failures (500 and above)."""
logger = logging.getLogger(__name__)


def download_file(file: RemoteFile, into: PartialFile, context: DownloadContext, *, most: int) -> tuple[str, int]:
    """Bring what is missing of ``file`` to ``into``; the SHA-256 of the whole in hexadecimal digits, and its size.

    Raises:
        WrongDigestError: the file has not the digest that it should have; nothing of it is kept.
        InvalidArgumentError: it is larger than ``most``, or its address may not be asked.
        UnavailableError: the source does not answer, changed meanwhile, or sends another size; the disk is full.
        CancelledError: the download was given up. What has arrived is kept.
    """
    resumed = any(into.marks)
    with full_disk(str(into.path.parent), file.size or 0):
        try:
            try:
                return _Download(file, into, context, most).run()
            except WrongDigestError:
                if not resumed:
                    raise
                logger.info("what was kept of %s does not fit; it comes again", file.name)
                into.clear()
                return _Download(file, into, context, most).run()
        except ChangedError as error:
            into.clear()
            raise StoreUnavailableError(f"{file.name} changed while it was copied ({error}); load it again") from error
        except WrongDigestError:
            into.clear()
            raise
        except OSError as error:
            if error.errno in FULL_DISK:
                into.clear()
            raise


class _Download:
    """One run. The first answer shows the size, and whether there are ranges."""

    def __init__(self, file: RemoteFile, into: PartialFile, context: DownloadContext, most: int) -> None:
        self._file = file
        self._into = into
        self._context = context
        self._most = most
        self._tag: str | None = None
        self._received: ReceivedRanges | None = None

    def run(self) -> tuple[str, int]:
        failures = 0
        self._check_size(self._file.size)
        while not self._is_here():
            start = self._start()
            try:
                end = self._end(start)
                with self._context.one(), self._file.open(start, end) as stream:
                    if not self._begin(stream, start):
                        continue
                    if not stream.ranged:
                        return self._whole(stream)
                    whole = stream.may_tear and not self._file.digest and (stream.size or 0) > self._end(start) - start
                    if not whole:
                        self._first(stream, start)
                if whole:
                    with self._context.one(), self._file.open(0, 0) as stream:
                        return self._whole(stream)
                break
            except Exception as error:  # filesystem packages have no common base for what is worth another try
                failures = 1 if self._start() > start else failures + 1
                self._pause(error, failures)
        return self._rest()

    def _is_here(self) -> bool:
        """Whether nothing has to be asked: an empty file, or one that an earlier run brought and a digest proves."""
        size = self._file.size
        if size is None or self._start() < size:
            return False
        if size and not self._file.digest:
            self._into.unmark(-(-size // CHUNK) - 1)  # The answer shows whether it is still that file.
            return False
        self._received = ReceivedRanges(self._into, size, self._context)
        return True

    def _start(self) -> int:
        """Where the first chunk that is not here begins."""
        marks = self._into.marks
        chunk = marks.find(0)
        return (len(marks) if chunk < 0 else chunk) * CHUNK

    def _end(self, start: int) -> int:
        """Where the first request ends: before the next chunk that is here."""
        marked = self._into.marks.find(1, start // CHUNK, (start + SEGMENT) // CHUNK)
        end = start + SEGMENT if marked < 0 else marked * CHUNK
        return end if self._file.size is None else min(end, self._file.size)

    def _begin(self, stream: ByteStream, start: int) -> bool:
        """Compare the first answer with what is here; false if it was another content, so that all comes again."""
        if self._tag is None:
            known = bool(stream.tag or self._file.tag) and stream.tag == self._into.tag
            if any(self._into.marks) and not (known or self._file.digest):
                self._into.clear()
                if start:
                    return False
            self._tag = stream.tag
        self._check_same(stream)
        return True

    def _first(self, stream: ByteStream, start: int) -> None:
        size = stream.size or 0
        self._check_size(size)
        missing = size - CHUNK * sum(self._into.marks)
        where = self._into.path.parent
        check_space(where, max(0, missing), what=self._file.name, free=free_bytes(where))
        if self._received is None:
            self._received = ReceivedRanges(self._into, size, self._context)
        if size > CHUNK:  # else a kill costs nothing that is worth being kept
            self._into.keep(self._tag or "")
        self._read(stream, self._received, (start, min(self._end(start), size)))

    def _check_same(self, stream: ByteStream) -> None:
        if stream.tag != self._tag:
            raise ChangedError(f"its tag was {(self._tag or '')[:80]!r} and is {stream.tag[:80]!r}")
        size = self._received.size if self._received is not None else self._file.size
        if size is not None and stream.size is not None and stream.size != size:
            raise ChangedError(f"it has {stream.size} bytes, and {size} were expected")

    def _check_size(self, size: int | None) -> None:
        if size is not None and size < 0:
            raise InvalidArgumentError(f"{self._file.name} is reported to have {size} bytes")
        if size is not None and size > self._most:
            raise InvalidArgumentError(f"{self._file.name} has {size} bytes; the limit is {self._most}")

    def _whole(self, stream: ByteStream) -> tuple[str, int]:
        """All in one answer: a connection that breaks begins it again."""
        self._into.clear()
        size = self._file.size if stream.size is None else stream.size
        self._check_size(size)
        digester = Digester(self._file.digest, size or 0)
        buffer = memoryview(bytearray(CHUNK))
        position = 0
        try:
            while count := stream.readinto(buffer):
                self._context.check()
                if size is not None and position + count > size:
                    raise ChangedError(f"more than {size} bytes came")
                self._check_size(position + count)
                self._into.write(position, buffer[:count])
                digester.update(buffer[:count])
                position += count
                self._context.count(count)
            if size is not None and position < size:
                raise OSError(f"{position} bytes came of {size}")
        except BaseException:
            self._context.count(-position)
            raise
        return digester.sha256(self._file.name), position

    def _rest(self) -> tuple[str, int]:
        """The other ranges, on threads of their own, while this one hashes what is here."""
        received = self._received
        assert received is not None
        spans = 0 if received.complete else -(-received.size // SEGMENT)
        helpers = [
            threading.Thread(target=self._help, args=(received,), name=f"repoagent-download-{number}", daemon=True)
            for number in range(min(self._context.workers, spans))
        ]
        try:
            for helper in helpers:
                helper.start()
            return self._digest(received), received.size
        finally:
            received.fail(CancelledError("the download was given up"))
            for helper in helpers:
                if helper.ident is not None:
                    helper.join()

    def _help(self, received: ReceivedRanges) -> None:
        try:
            while (span := received.take()) is not None:
                self._bring(received, span)
        except BaseException as error:
            received.fail(error)

    def _bring(self, received: ReceivedRanges, span: tuple[int, int]) -> None:
        start, end = span
        failures = 0
        while start < end and not received.failed:
            try:
                with self._context.one(), self._file.open(start, end) as stream:
                    self._check_same(stream)
                    if not stream.ranged:
                        raise ChangedError("the server does not take ranges any more")
                    self._read(stream, received, (start, end))
                return
            except Exception as error:  # as above
                before, start = start, received.first_missing(start)
                failures = 1 if start > before else failures + 1
                self._pause(error, failures)

    def _read(self, stream: ByteStream, received: ReceivedRanges, span: tuple[int, int]) -> None:
        position, end = span
        buffer = memoryview(bytearray(min(CHUNK, end - position)))
        while position < end:
            if received.failed:
                return
            self._context.check()
            room = min(CHUNK - position % CHUNK, end - position)
            count = stream.readinto(buffer[:room])
            if count == 0:
                raise OSError(f"{position - span[0]} bytes came for the range {span[0]}-{end}")
            self._into.write(position, buffer[:count])
            position += count
            if position % CHUNK == 0 or position == received.size:
                received.arrived((position - 1) // CHUNK)

    def _digest(self, received: ReceivedRanges) -> str:
        digester = Digester(self._file.digest, received.size)
        buffer = memoryview(bytearray(min(CHUNK, received.size)))
        for chunk in range(received.chunks):
            length = received.wait(chunk)
            if os.preadv(self._into.fd, [buffer[:length]], chunk * CHUNK) != length:
                self._into.clear()
                raise UnavailableError(f"what has arrived of {self._file.name} cannot be read back")
            digester.update(buffer[:length])
        return digester.sha256(self._file.name)

    def _pause(self, error: Exception, failures: int) -> None:
        """Wait before another try, or raise what no other try can mend."""
        if isinstance(error, (CancelledError, InvalidArgumentError, ChangedError)):
            raise error
        if isinstance(error, OSError) and error.errno in _OUR_DISK:
            raise error
        if _is_final(error) or failures >= _ATTEMPTS:
            kind = UnavailableError if _is_final(error) else StoreUnavailableError
            raise kind(f"cannot read {self._file.name} (attempt {failures}): {described(error)}") from error
        logger.info("attempt %d to read %s failed: %s", failures, self._file.name, described(error))
        self._context.stop.wait(min(_FIRST_PAUSE * 2 ** (failures - 1), _LONGEST_PAUSE))
        self._context.check()


def _is_final(error: Exception) -> bool:
    if isinstance(error, WebError):
        return error.status not in _LATER and error.status < 500
    return isinstance(error, (FileNotFoundError, PermissionError))
