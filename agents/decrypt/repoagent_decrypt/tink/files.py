"""File to file. The first segment is done alone, since it finds the key; all threads share the others."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from repoagent_decrypt.files.errors import DamagedError, WrongKeyError
from repoagent_decrypt.files.positional import Hashers, Job, Progress, Side, Sizes, Workers, new_file, write_at
from repoagent_decrypt.tink.keyset import StreamingKey
from repoagent_decrypt.tink.stream import TAG, SegmentCipher, Shape, header_size, new_header

_BATCH: Final = 1 << 20
"""Bytes of segments that one thread does at a time, at least one segment."""


def plain_size(path: Path, keys: Sequence[StreamingKey]) -> int:
    """How many bytes of plaintext the file ``path`` has at most.

    Only the right key knows the size of a segment, so with several this is the largest of their answers.

    Raises:
        DamagedError: the file has a size that none of ``keys`` can have made.
    """
    size = path.stat().st_size
    sizes = []
    for key in keys:
        try:
            sizes.append(Shape.of_sealed(size, key).plain)
        except DamagedError as error:
            fault = error
    if not sizes:
        raise fault
    return max(sizes)


def decrypt_file(
    source: Path, target: Path, keys: Sequence[StreamingKey], *, workers: Workers, progress: Progress | None = None
) -> Sizes:
    """Decrypt ``source`` into the new file ``target`` (mode 0600), which exists afterwards only if all is authentic.

    Args:
        source: A file that Tink encrypted, without associated data.
        target: Must not exist.
        keys: The keys to try, in order.
        workers: The threads.
        progress: Gets the bytes of plaintext so far, on the calling thread; may raise to cancel.

    Raises:
        WrongKeyError: none of ``keys`` opens the first segment.
        DamagedError: a segment is not authentic, or the file was cut or extended.
        OSError: a file cannot be read or written; ``FileExistsError`` if ``target`` exists.
    """
    with source.open("rb", buffering=0) as stream, new_file(target) as fd:
        opened = _open_first(stream.fileno(), keys)
        write_at(fd, opened.first, 0)
        written, read = Hashers(workers.hashing), Hashers(workers.reading)
        written.update(opened.first)
        read.update(opened.head)
        workers.run(_decrypt_job(opened, stream.fileno(), fd), progress, written, read)
        status = os.fstat(fd)
        return Sizes(opened.shape.sealed, status.st_size, status, written.digests(), read.digests())


def encrypt_file(
    source: Path, target: Path, key: StreamingKey, *, workers: Workers, progress: Progress | None = None
) -> Sizes:
    """Encrypt ``source`` into the new file ``target``; the reverse of :func:`decrypt_file`, same rules."""
    with source.open("rb", buffering=0) as stream, new_file(target) as fd:
        header = new_header(key)
        cipher = SegmentCipher(key, header)
        shape = Shape.of_plain(os.fstat(stream.fileno()).st_size, key)
        first = memoryview(os.pread(stream.fileno(), min(shape.plain, key.segment_size - TAG - len(header)), 0))
        sealed = memoryview(bytearray(len(first) + TAG))
        cipher.seal(0, first, sealed, last=shape.segments == 1)
        write_at(fd, memoryview(header), 0)
        write_at(fd, sealed, len(header))
        workers.run(_encrypt_job(key, cipher, shape, len(first), stream.fileno(), fd), progress)
        return Sizes(shape.plain, os.fstat(fd).st_size)


@dataclass(frozen=True, slots=True)
class _Opened:
    key: StreamingKey
    cipher: SegmentCipher
    shape: Shape
    first: memoryview
    """The plaintext of the first segment."""
    head: bytes
    """The header and the first segment, as they were read."""


def _open_first(fd: int, keys: Sequence[StreamingKey]) -> _Opened:
    size = os.fstat(fd).st_size
    fault: DamagedError | None = None
    for key in keys:
        length = header_size(key.derived_size)
        header = os.pread(fd, length, 0)
        if len(header) != length or header[0] != length:
            continue
        try:
            shape = Shape.of_sealed(size, key)
            cipher = SegmentCipher(key, header)
            sealed = memoryview(os.pread(fd, min(size, key.segment_size) - length, length))
            first = memoryview(bytearray(max(0, len(sealed) - TAG)))
            cipher.open(0, sealed, first, last=shape.segments == 1)
        except DamagedError as error:
            fault = error
        else:
            return _Opened(key, cipher, shape, first, header + sealed.tobytes())
    if fault is not None and len(keys) == 1 and "cannot be right" in str(fault):
        raise fault
    raise WrongKeyError("no key of the keyset opens the first segment: another key, or the file was changed")


def _decrypt_job(opened: _Opened, source: int, target: int) -> Job:
    key, shape = opened.key, opened.shape
    segments = _per_batch(key)
    room = key.segment_size - TAG

    def open_batch(number: int, sealed: memoryview, plain: memoryview, ends: bool) -> int:
        done = 0
        starts = range(0, len(sealed), key.segment_size)
        for position, start in enumerate(starts):
            segment = sealed[start : start + key.segment_size]
            last = ends and position == len(starts) - 1
            index = 1 + number * segments + position
            done += opened.cipher.open(index, segment, plain[done : done + room], last=last)
        return done

    return Job(
        source=Side(source, key.segment_size, segments * key.segment_size),
        target=Side(target, len(opened.first), segments * room),
        size=max(0, shape.sealed - key.segment_size),
        batches=-(-(shape.segments - 1) // segments),
        transform=open_batch,
    )


def _encrypt_job(key: StreamingKey, cipher: SegmentCipher, shape: Shape, first: int, source: int, target: int) -> Job:
    segments = _per_batch(key)
    room = key.segment_size - TAG

    def seal_batch(number: int, plain: memoryview, sealed: memoryview, ends: bool) -> int:
        done = 0
        starts = range(0, len(plain), room)
        for position, start in enumerate(starts):
            last = ends and position == len(starts) - 1
            index = 1 + number * segments + position
            done += cipher.seal(index, plain[start : start + room], sealed[done:], last=last)
        return done

    return Job(
        source=Side(source, first, segments * room),
        target=Side(target, key.segment_size, segments * key.segment_size),
        size=shape.plain - first,
        batches=-(-(shape.segments - 1) // segments),
        transform=seal_batch,
    )


def _per_batch(key: StreamingKey) -> int:
    return max(1, _BATCH // key.segment_size)
