"""Digests of files beneath a root, several at once, each streamed through fixed buffers.

Memory maps would save a copy, but a file that shrinks under a map kills the process, and mapped pages count as memory
of the process. Reading the next buffer in a second thread while one is hashed is as fast (``benchmarks/``).
"""

import hashlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Final, Protocol

from repoagent.beneath.opening import open_beneath, shown
from repoagent.beneath.unchanged import FileState, file_state, wait_for_clock
from repoagent.errors import CancelledError, InvalidArgumentError, UnsupportedError

BUFFER_BYTES: Final = 1 << 20
AHEAD_BYTES: Final = 512 << 10
"""Of each of the two buffers of a large file. The processor's caches hold what one thread read until the other one
hashes it: with 4 MiB, SHA-256 takes a quarter more processor time."""
LARGE: Final = 4 << 20
"""From this size on a second thread is worth its start."""


class Hasher(Protocol):
    """The part of the interface of ``hashlib`` and ``blake3`` that is used here."""

    def update(self, data: Any, /) -> Any:
        """Take more of the content."""

    def digest(self) -> bytes:
        """The digest of all content so far."""

    def hexdigest(self) -> str:
        """The same, in lower-case hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """The bytes from ``start`` to ``end`` of the file ``path``; without an ``end``, to the end of the file."""

    path: str
    start: int = 0
    end: int | None = None


def new_hasher(algorithm: str, size: int = 0, *, threads: bool = False) -> Hasher:
    """A hasher, before any content.

    ``algorithm`` is a name of ``hashlib`` (``sha256``), ``blake3``, or ``git-sha1``, the name of a blob in Git, which
    needs the ``size`` of the whole content in bytes. ``threads``: one update may use every core, if the algorithm can.
    Raises ``UnsupportedError`` for ``blake3`` without its package.
    """
    if algorithm == "blake3":
        try:
            from blake3 import blake3
        except ImportError:
            raise UnsupportedError("BLAKE3 needs the package 'blake3'; install it with: pip install blake3") from None
        hasher: Hasher = blake3(max_threads=blake3.AUTO if threads else 1)
        return hasher
    # Not "for security" lets MD5 and SHA-1 work on FIPS machines too; the callers know whether they are good enough.
    if algorithm == "git-sha1":
        return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    return hashlib.new(algorithm, usedforsecurity=False)


def digest_files(
    root: Path | str,
    files: Mapping[str, Sequence[str]],
    *,
    follow: bool = False,
    cancelled: Callable[[], bool] = lambda: False,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    workers: int | None = None,
    steady: dict[str, FileState] | None = None,
) -> dict[str, dict[str, str]]:
    """The digests of whole files: path -> algorithm -> hexadecimal digits.

    Args:
        root: The directory that no file may leave.
        files: For each path, relative to ``root``, the algorithms of :func:`new_hasher`; the file is read once for all.
        follow: Whether links that stay beneath ``root`` are followed.
        cancelled: Called between two buffers, never by two threads at once.
        progress: Called with the bytes read and the bytes in all, between two buffers, never by two threads at once.
        workers: Files read at the same time; by default one for each core that this process may use.
        steady: Filled with the state of each file that was the same before and after it was read: as long as a file
            has that state, it has these digests. Not of files that a change within one clock step leaves the same.

    Raises:
        OSError: a file cannot be read; ``filename`` is its path in ``files``.
        UnsafePathError: a file is reached through a link, or is not a regular file.
        UnsupportedError: an algorithm whose package is not installed.
        CancelledError: ``cancelled()`` was true.
    """
    jobs = [_Job(FileRange(path), algorithms) for path, algorithms in files.items()]
    digesting = _Digesting(root, jobs, follow, cancelled, progress, workers or _cores(), steady)
    found = digesting.run()
    return {
        job.range.path: {name: digest.hex() for name, digest in zip(job.algorithms, digests, strict=True)}
        for job, digests in zip(jobs, found, strict=True)
    }


def tree_digest(files: Mapping[str, str]) -> str:
    """SHA-256 of the lines that ``sha256sum`` prints for ``files``, by name, sorted by name in bytes.

    ``find . -type f | sed 's,^./,,' | LC_ALL=C sort | xargs -d '\\n' sha256sum | sha256sum`` prints it.
    """
    lines = sorted((_bytes(name), _bytes(digest)) for name, digest in files.items())
    return hashlib.sha256(b"".join(_line(name, digest) for name, digest in lines)).hexdigest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _line(name: bytes, digest: bytes) -> bytes:
    """One name must not read as several lines: ``sha256sum`` escapes it, and begins the line with a mark."""
    escaped = name.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r")
    return b"%b%b  %b\n" % (b"" if escaped == name else b"\\", digest, escaped)


def digest_ranges(
    root: Path | str,
    ranges: Sequence[FileRange],
    algorithm: str,
    *,
    follow: bool = False,
    cancelled: Callable[[], bool] = lambda: False,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[bytes]:
    """The digests of ``ranges``, in their order, as :func:`digest_files` makes them. Raises ``InvalidArgumentError`` if
    a file ends before its range."""
    jobs = [_Job(each, (algorithm,)) for each in ranges]
    return [digest for (digest,) in _Digesting(root, jobs, follow, cancelled, progress, _cores()).run()]


def _cores() -> int:
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class _Job:
    range: FileRange
    algorithms: Sequence[str]

    def length(self, root: Path | str) -> int:
        if self.range.end is not None:
            return self.range.end - self.range.start
        try:
            return max(0, os.stat(os.path.join(root, self.range.path)).st_size - self.range.start)
        except (OSError, ValueError):
            return 0  # Opening it raises the reason.


class _Digesting:
    """The work that threads share. Each takes the next job until there is none, or one has failed."""

    def __init__(
        self,
        root: Path | str,
        jobs: Sequence[_Job],
        follow: bool,
        cancelled: Callable[[], bool],
        progress: Callable[[int, int], None],
        workers: int,
        steady: dict[str, FileState] | None = None,
    ) -> None:
        self._root = root
        self._jobs = jobs
        self._follow = follow
        self._cancelled = cancelled
        self._progress = progress
        self._workers = workers
        self._steady = steady
        self._lengths = [job.length(root) for job in jobs]
        self._total = sum(self._lengths)
        # The largest first, so that no worker is left alone with one at the end.
        self._left = deque(sorted(range(len(jobs)), key=lambda index: -self._lengths[index]))
        self._digests: list[list[bytes]] = [[] for _ in jobs]
        self._lock = threading.Lock()
        self._done = 0
        self._stopped = False

    def run(self) -> list[list[bytes]]:
        workers = min(self._workers, len(self._jobs))
        if not workers:
            return []
        with ThreadPoolExecutor(workers, thread_name_prefix="digest") as pool:
            try:
                futures = [pool.submit(self._work) for _ in range(workers)]
                wait(futures, return_when=FIRST_EXCEPTION)
                for future in futures:
                    if future.done():
                        future.result()
            finally:
                self._stopped = True
        return self._digests

    def _work(self) -> None:
        buffer = memoryview(bytearray(min(BUFFER_BYTES, max(self._lengths) + 1)))
        while not self._stopped:
            try:
                index = self._left.popleft()
            except IndexError:
                return
            self._digests[index] = self._digest(self._jobs[index], self._lengths[index], buffer)

    def _digest(self, job: _Job, length: int, buffer: memoryview) -> list[bytes]:
        large = length * self._workers > self._total
        where = job.range
        most = sys.maxsize if where.end is None else where.end - where.start
        try:
            with open_beneath(self._root, where.path, follow=self._follow) as file:
                status = os.fstat(file.fileno())
                clear = self._steady is not None and wait_for_clock(status.st_ctime_ns)
                hashers = [new_hasher(name, status.st_size, threads=large) for name in job.algorithms]
                file.seek(where.start)
                if large and length > LARGE:
                    read = self._stream_ahead(file, most, hashers)
                else:
                    read = self._stream(file, most, hashers, buffer)
                if self._steady is not None and clear and file_state(os.fstat(file.fileno())) == file_state(status):
                    self._steady[where.path] = file_state(status)
        except OSError as error:
            raise OSError(error.errno, error.strerror, where.path) from error
        if where.end is not None and read < most:
            raise InvalidArgumentError(f"{shown(where.path)} ends before byte {where.end}")
        return [hasher.digest() for hasher in hashers]

    def _stream(self, file: FileIO, most: int, hashers: Sequence[Hasher], buffer: memoryview) -> int:
        """The plain loop: read a buffer, hash it. Returns the number of bytes."""
        read = 0
        while count := file.readinto(buffer[: most - read]):
            self._update(hashers, buffer[:count])
            read += count
        return read

    def _stream_ahead(self, file: FileIO, most: int, hashers: Sequence[Hasher]) -> int:
        """The same with two buffers: a second thread reads one while this one hashes the other."""
        current, following = (memoryview(bytearray(AHEAD_BYTES)) for _ in range(2))
        with ThreadPoolExecutor(1, thread_name_prefix="digest-read") as reader:
            read = count = file.readinto(current[:most])
            while count:
                ahead = reader.submit(file.readinto, following[: most - read])
                self._update(hashers, current[:count])
                count = ahead.result()
                read += count
                current, following = following, current
        return read

    def _update(self, hashers: Sequence[Hasher], data: memoryview) -> None:
        for hasher in hashers:
            hasher.update(data)
        with self._lock:
            if self._stopped or self._cancelled():
                self._stopped = True
                raise CancelledError("the digests were not finished: the load was cancelled")
            self._done += len(data)
            self._progress(self._done, self._total)
