"""Work on a file batch by batch, each thread reading and writing at its own positions.

No hand-over of data between threads, so both cores decrypt, read and write at the same time. The calling thread is
one of the workers, and the only one that calls back.
"""

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from repoagent.api import new_hasher
from repoagent_decrypt.files.errors import DamagedError


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of the file that was read and of the one that was written, and their digests where they were computed."""

    read: int
    written: int
    status: os.stat_result | None = field(default=None, compare=False)
    """That of what was written, after its last byte."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """Those of what was written, by algorithm, in hexadecimal digits."""
    read_digests: Mapping[str, str] = field(default_factory=dict)
    """Those of the bytes that the result was made of."""


class Hashers:
    """Several digests of one content, which comes in order."""

    def __init__(self, algorithms: Sequence[str]) -> None:
        self._hashers = {name: new_hasher(name) for name in algorithms}

    def __bool__(self) -> bool:
        return bool(self._hashers)

    def update(self, data: bytes | memoryview) -> None:
        """Take more of the content."""
        for hasher in self._hashers.values():
            hasher.update(data)

    def digests(self) -> dict[str, str]:
        """Algorithm -> hexadecimal digits."""
        return {name: hasher.hexdigest() for name, hasher in self._hashers.items()}


@contextmanager
def new_file(path: Path) -> Iterator[int]:
    """Create ``path`` for writing, for the owner only; remove it again if the block raises."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


_MOST: Final = 8


def thread_count(wanted: int | None) -> int:
    """``wanted``, or one per CPU this process may use, at most 8; always at least 1."""
    if wanted is not None:
        return max(1, wanted)
    return min(_MOST, len(os.sched_getaffinity(0)))


Transform = Callable[[int, memoryview, memoryview, bool], int]
Progress = Callable[[int], None]
"""Told how many bytes are done in all; may raise to stop the work."""


@dataclass(frozen=True, slots=True)
class Side:
    """A file descriptor, where the data begins in it, and the bytes of one full batch there."""

    fd: int
    start: int
    batch: int


@dataclass(frozen=True, slots=True)
class Job:
    """Turn ``size`` bytes of ``source``, in ``batches`` batches, into ``target``.

    ``transform(batch number, input, output, is last)`` returns the bytes of output.
    """

    source: Side
    target: Side
    size: int
    batches: int
    transform: Transform


class Workers:
    """Threads and their buffers, kept from one file to the next. One job at a time; close them, or use ``with``.

    Args:
        threads: How many, the calling thread included; by default one per CPU, at most 8.
        hashing: The digests of the plaintext that are wanted.
        reading: Those of the encrypted files.
    """

    def __init__(self, threads: int | None = None, *, hashing: Sequence[str] = (), reading: Sequence[str] = ()) -> None:
        self.threads: Final = thread_count(threads)
        self.hashing: Final = hashing
        self.reading: Final = reading
        self._pool = ThreadPoolExecutor(max(1, self.threads - 1), "decrypt-file")
        self._buffers = threading.local()

    def run(
        self,
        job: Job,
        progress: Progress | None = None,
        written: Hashers | None = None,
        read: Hashers | None = None,
    ) -> int:
        """Do all batches; returns the bytes written. The first error of any thread stops all and is raised.

        ``written`` gets the output of the batches in order, ``read`` their input: while one thread hashes, the others
        work.
        """
        turns = _Turns(job.batches, _InOrder(written), _InOrder(read))
        helpers = min(self.threads, job.batches) - 1
        others = [self._pool.submit(self._work, job, turns, None) for _ in range(helpers)]
        try:
            self._work(job, turns, progress)
        finally:
            wait(others)
        for other in others:
            other.result()
        if progress is not None:
            # The others may have done the last batches, or all of them.
            progress(turns.written)
        return turns.written

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self, job: Job, turns: "_Turns", progress: Progress | None) -> None:
        source = self._buffer("source", job.source.batch)
        target = self._buffer("target", job.target.batch)
        try:
            while (number := turns.take()) is not None:
                data = _read_batch(job, number, source)
                turns.read.update(number, data)
                size = job.transform(number, data, target, number == job.batches - 1)
                write_at(job.target.fd, target[:size], job.target.start + number * job.target.batch)
                turns.done(number, target[:size])
                if progress is not None:
                    progress(turns.written)
        except BaseException:
            turns.stop()
            raise

    def _buffer(self, name: str, size: int) -> memoryview:
        kept: memoryview | None = getattr(self._buffers, name, None)
        if kept is None or len(kept) < size:
            kept = memoryview(bytearray(size))
            setattr(self._buffers, name, kept)
        return kept[:size]


class _InOrder:
    """Gives ``hashers`` the batches in their order, whichever thread has them; each waits for its turn."""

    def __init__(self, hashers: Hashers | None) -> None:
        self._hashers = hashers
        self._hashed = 0
        self._changed = threading.Condition()
        self._stopped = False

    def update(self, number: int, data: memoryview) -> None:
        if not self._hashers:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._hashed == number)
        if not self._stopped:
            self._hashers.update(data)
        with self._changed:
            self._hashed += 1
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


class _Turns:
    """Hands out batch numbers until they are used up or one fails."""

    def __init__(self, count: int, hashed: _InOrder, read: _InOrder) -> None:
        self._count = count
        self._hashed = hashed
        self.read = read
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._stopped = False
        self.written = 0

    def take(self) -> int | None:
        with self._lock:
            number = next(self._numbers)
        return None if self._stopped or number >= self._count else number

    def done(self, number: int, data: memoryview) -> None:
        with self._lock:
            self.written += len(data)
        self._hashed.update(number, data)

    def stop(self) -> None:
        self._stopped = True
        self._hashed.stop()
        self.read.stop()


def _read_batch(job: Job, number: int, source: memoryview) -> memoryview:
    start = number * job.source.batch
    data = source[: min(job.source.batch, job.size - start)]
    _read_at(job.source.fd, data, job.source.start + start)
    return data


def _read_at(fd: int, into: memoryview, offset: int) -> None:
    done = 0
    while done < len(into):
        count = os.preadv(fd, [into[done:]], offset + done)
        if not count:
            raise DamagedError("the file became shorter while it was read")
        done += count


def write_at(fd: int, data: memoryview, offset: int) -> None:
    """Write all of ``data`` at ``offset``."""
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)
