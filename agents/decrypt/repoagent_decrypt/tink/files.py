"""File to file. The first segment is done alone, since it finds the key; all threads share the others.

A file is a header (its own length in one byte, a salt, seven bytes of nonce), then segments of AES-GCM. The header and
the first segment together have the size of a segment, so segment ``i`` starts at ``i * segment_size``. The nonce of a
segment has its number and whether it is the last.
"""

import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from repoagent_decrypt.files.errors import DamagedError, WrongKeyError
from repoagent_decrypt.files.positional import Hashers, Job, Progress, Side, Sizes, Workers, new_file, write_at
from repoagent_decrypt.tink.keyset import StreamingKey

_BATCH: Final = 1 << 20
"""Bytes of segments that one thread does at a time, at least one segment."""
TAG: Final = 16
_PREFIX: Final = 7
_MOST_SEGMENTS: Final = 1 << 32
_HASHES: Final[dict[str, Callable[[], hashes.HashAlgorithm]]] = {
    "SHA1": hashes.SHA1,
    "SHA256": hashes.SHA256,
    "SHA512": hashes.SHA512,
}


def header_size(derived_size: int) -> int:
    """Bytes of the header: the length byte, a salt as long as the derived key, the nonce's prefix."""
    return 1 + derived_size + _PREFIX


def new_header(key: StreamingKey) -> bytes:
    """A header for a new file."""
    size = header_size(key.derived_size)
    return bytes([size]) + secrets.token_bytes(size - 1)


@dataclass(frozen=True, slots=True)
class Shape:
    """How a file divides into segments: with ``plain`` bytes of plaintext, it has ``sealed`` bytes in all."""

    segments: int
    plain: int
    sealed: int

    @classmethod
    def of_sealed(cls, size: int, key: StreamingKey) -> "Shape":
        """The shape of a file of ``size`` bytes.

        Raises:
            DamagedError: no file can have this size, so it was cut or extended.
        """
        header = header_size(key.derived_size)
        full, rest = divmod(size, key.segment_size)
        segments = full + (rest > 0)
        least = TAG + (header if segments == 1 else 0)
        if size < header + TAG or (0 < rest < least) or (rest == TAG and segments > 1):
            raise DamagedError(f"the file is cut short or damaged: {size} bytes cannot be right")
        if segments > _MOST_SEGMENTS:
            raise DamagedError(f"{segments} segments, at most {_MOST_SEGMENTS} are possible")
        return cls(segments, size - header - segments * TAG, size)

    @classmethod
    def of_plain(cls, size: int, key: StreamingKey) -> "Shape":
        """The shape of a file with ``size`` bytes of plaintext."""
        header = header_size(key.derived_size)
        room = key.segment_size - TAG
        segments = max(1, -(-(size + header) // room))
        return cls(segments, size, size + header + segments * TAG)


class SegmentCipher:
    """Opens and seals segments of one file. Has no state: many threads may use it at once."""

    def __init__(self, key: StreamingKey, header: bytes) -> None:
        salt = header[1 : 1 + key.derived_size]
        derived = HKDF(_HASHES[key.hash_name](), key.derived_size, salt, b"").derive(key.secret)
        self._aead = AESGCM(derived)
        self._prefix = header[1 + key.derived_size :]

    def open(self, index: int, sealed: memoryview, plain: memoryview, *, last: bool) -> int:
        """Decrypt segment ``index`` into ``plain``; returns the bytes of plaintext.

        Raises:
            DamagedError: it is not authentic in this place.
        """
        size = len(sealed) - TAG
        try:
            self._aead.decrypt_into(self._nonce(index, last), sealed, None, plain[:size])
        except (InvalidTag, ValueError):
            raise DamagedError(
                f"the file was changed, cut or extended: segment {index} does not authenticate"
            ) from None
        return size

    def seal(self, index: int, plain: memoryview, sealed: memoryview, *, last: bool) -> int:
        """Encrypt segment ``index`` into ``sealed``; returns the bytes written."""
        size = len(plain) + TAG
        self._aead.encrypt_into(self._nonce(index, last), plain, None, sealed[:size])
        return size

    def _nonce(self, index: int, last: bool) -> bytes:
        return self._prefix + index.to_bytes(4, "big") + bytes([last])


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
