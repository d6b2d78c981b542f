"""Digests of many files at once, each streamed through fixed buffers.

Memory maps would save a copy, but a file that shrinks under a map kills the process, and mapped pages count as memory
of the process. Reading the next buffer in a second thread while one is hashed is as fast (``benchmarks/``).
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Final

from repoagent.api import InvalidArgumentError
from repoagent_checksum.algorithms import Algorithm, Hasher
from repoagent_checksum.file_names import open_inside, show
from repoagent_checksum.observer import Meter, Observer

__all__ = ["Digests", "digest_files"]

Digests = dict[str, dict[str, str]]
"""Path -> name of algorithm -> digest."""

BUFFER_BYTES: Final = 1 << 20
LARGE_BUFFER_BYTES: Final = 4 << 20


def digest_files(
    root: Path, jobs: Mapping[str, Sequence[Algorithm]], *, observer: Observer | None = None, workers: int | None = None
) -> Digests:
    """The digests of the files ``jobs`` names, relative to ``root``.

    Args:
        root: The directory that no file may leave.
        jobs: For every file the algorithms wanted; a file is read once for all of them.
        observer: Is told of the progress in bytes.
        workers: Files hashed at the same time; by default one for each core that this process may use.

    Raises:
        InvalidArgumentError: a file cannot be opened or read.
        UnsafePathError: a file is reached through a link, or is none.
        CancelledError: the observer said so.
    """
    sizes = {path: _size(root, path) for path in jobs}
    total = sum(sizes.values())
    workers = workers or len(os.sched_getaffinity(0))
    meter = Meter(observer or Observer(), total)
    with _pool(workers, meter) as pool:
        # The largest first, so that no worker is left alone with one at the end.
        futures = {
            path: pool.submit(_digest_file, root, path, jobs[path], meter, large=sizes[path] * workers > total)
            for path in sorted(jobs, key=lambda path: -sizes[path])
        }
        wait(futures.values(), return_when=FIRST_EXCEPTION)
        failed = [future for future in futures.values() if future.done() and future.exception()]
        for future in failed:
            future.result()
    return {path: futures[path].result() for path in jobs}


@contextmanager
def _pool(workers: int, meter: Meter) -> Iterator[ThreadPoolExecutor]:
    """A pool whose threads stop at their next buffer when the body raises."""
    with ThreadPoolExecutor(workers, thread_name_prefix="checksum") as pool:
        try:
            yield pool
        except BaseException:
            meter.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _size(root: Path, path: str) -> int:
    try:
        return os.lstat(root / path).st_size
    except OSError:
        return 0  # Opening it will say why.


def _digest_file(
    root: Path, path: str, algorithms: Sequence[Algorithm], meter: Meter, *, large: bool
) -> dict[str, str]:
    try:
        with open_inside(root, path) as file:
            size = os.fstat(file.fileno()).st_size
            hashers = [algorithm.new(size, threads=large) for algorithm in algorithms]
            if large and size > LARGE_BUFFER_BYTES:
                _stream_ahead(file, hashers, meter)
            else:
                _stream(file, hashers, meter, min(size + 1, BUFFER_BYTES))
    except OSError as error:
        # Word for word what Triton's agent says.
        raise InvalidArgumentError(f"failed to open text file for read {show(path)}: {error.strerror}") from error
    return {algorithm.name: hasher.hexdigest() for algorithm, hasher in zip(algorithms, hashers, strict=True)}


def _stream(source: FileIO, hashers: Sequence[Hasher], meter: Meter, buffer_bytes: int) -> None:
    """The plain loop: read a buffer, hash it."""
    buffer = memoryview(bytearray(buffer_bytes))
    while count := source.readinto(buffer):
        _update(hashers, buffer[:count], meter)


def _stream_ahead(source: FileIO, hashers: Sequence[Hasher], meter: Meter) -> None:
    """The same with two buffers: a second thread reads one while this one hashes the other."""
    current, following = (memoryview(bytearray(LARGE_BUFFER_BYTES)) for _ in range(2))
    with ThreadPoolExecutor(1, thread_name_prefix="checksum-read") as reader:
        count = source.readinto(current)
        while count:
            ahead = reader.submit(source.readinto, following)
            _update(hashers, current[:count], meter)
            count = ahead.result()
            current, following = following, current


def _update(hashers: Sequence[Hasher], data: memoryview, meter: Meter) -> None:
    for hasher in hashers:
        hasher.update(data)
    meter.add(len(data))
