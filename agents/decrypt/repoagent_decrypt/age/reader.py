"""Reading an age file: any stream in order, with several threads and bounded memory, or at random positions."""

import io
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from repoagent_decrypt.age.armor import ArmorReader, looks_armored
from repoagent_decrypt.age.header import open_header, read_header
from repoagent_decrypt.age.source import ByteSource, PeekReader, read_exactly
from repoagent_decrypt.age.stanzas import Identity
from repoagent_decrypt.age.stream import (
    BATCH_CHUNKS,
    CHUNK,
    NONCE,
    SEALED,
    DamagedBatchError,
    PayloadCipher,
    sealed_shape,
)
from repoagent_decrypt.files.errors import HeaderError, PayloadError
from repoagent_decrypt.files.positional import thread_count

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


@dataclass(frozen=True, slots=True)
class OpenedPayload:
    """``source`` stands at the first chunk; in the file that is byte ``start``, unless the file is armored."""

    cipher: PayloadCipher
    source: PeekReader
    start: int
    armored: bool


def open_payload(stream: ByteSource, identities: Iterable[Identity], *, armored: bool | None = None) -> OpenedPayload:
    """Find out whether ``stream`` is armored (unless told), parse its header and unlock it.

    Raises every error of :mod:`~repoagent_decrypt.files.errors` but ``PayloadError``.
    """
    source = PeekReader(stream)
    if armored is None:
        armored = looks_armored(source)
    if armored:
        source = PeekReader(ArmorReader(source))
    header = read_header(source)
    key = open_header(header, identities)
    try:
        nonce = read_exactly(source, NONCE)
        if len(nonce) != NONCE:
            raise HeaderError("the file ends right behind its header")
        return OpenedPayload(PayloadCipher(key, nonce), source, header.size + NONCE, armored)
    finally:
        key.wipe()


class AgeReader(io.RawIOBase):
    """A readable stream of plaintext.

    The header is parsed and authenticated by the constructor. Plaintext comes out chunk by chunk, each authenticated;
    only the end of the stream proves that nothing was cut off, so do not trust a result before ``read`` returned
    ``b""``. A damaged payload raises ``PayloadError`` after the good chunks were delivered, and again on every further
    read. ``stream`` is not closed. Memory: 2 MiB per thread and a little.

    Args:
        stream: The age file, binary or armored.
        identities: Who we are; the first that fits is used.
        threads: How many decrypt at once; by default one per CPU, at most 8. With 1 no thread is started.
        armored: Insist on armor (True) or on none (False); by default look.
    """

    def __init__(
        self,
        stream: ByteSource,
        identities: Iterable[Identity],
        *,
        threads: int | None = None,
        armored: bool | None = None,
    ) -> None:
        super().__init__()
        payload = open_payload(stream, identities, armored=armored)
        self._pieces = plain_pieces(payload, thread_count(threads))
        self._current = memoryview(b"")
        self._error: Exception | None = None

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        """Fill ``buffer`` as far as the next plaintext reaches; 0 at the authenticated end."""
        if self.closed:
            raise ValueError("read of a closed reader")
        target = memoryview(buffer).cast("B")
        if not len(self._current):
            self._current = self._next_piece()
        count = min(len(target), len(self._current))
        target[:count] = self._current[:count]
        self._current = self._current[count:]
        return count

    def pieces(self) -> Iterator[memoryview]:
        """The rest of the plaintext without another copy, a piece of up to 1 MiB at a time."""
        while piece := self._current or self._next_piece():
            self._current = memoryview(b"")
            yield piece

    def close(self) -> None:
        """Stop the threads. The underlying stream stays open."""
        if not self.closed:
            self._pieces.close()
        super().close()

    def _next_piece(self) -> memoryview:
        if self._error is not None:
            raise self._error
        try:
            return next(self._pieces, memoryview(b""))
        except Exception as error:
            self._error = error
            raise


def plain_pieces(payload: OpenedPayload, threads: int) -> Generator[memoryview]:
    """The plaintext of ``payload`` in pieces of up to 1 MiB, in order. Close the generator to stop early.

    A damaged payload raises ``PayloadError`` after the chunks before the damage were yielded.
    """
    batches = _batches(payload.source)
    cipher = payload.cipher
    for plain, error in _ahead(cipher, batches, threads) if threads > 1 else (_open(cipher, b) for b in batches):
        if len(plain):
            yield plain
        if error is not None:
            raise error


class _Batch(NamedTuple):
    first: int
    sealed: bytes
    ends: bool


class _Opened(NamedTuple):
    plain: memoryview
    error: PayloadError | None


def _batches(source: PeekReader) -> Iterator[_Batch]:
    # One batch is read ahead: whether a chunk is the final one shows only when nothing follows.
    size = BATCH_CHUNKS * SEALED
    first, sealed = 0, read_exactly(source, size)
    while True:
        following = read_exactly(source, size) if len(sealed) == size else b""
        yield _Batch(first, sealed, not following)
        if not following:
            return
        first, sealed = first + BATCH_CHUNKS, following


def _open(cipher: PayloadCipher, batch: _Batch) -> _Opened:
    plain = memoryview(bytearray(-(-len(batch.sealed) // SEALED) * CHUNK))
    try:
        size = cipher.open(batch.first, memoryview(batch.sealed), plain, ends=batch.ends)
        return _Opened(plain[:size], None)
    except DamagedBatchError as error:
        return _Opened(plain[: error.good], error)


def _ahead(cipher: PayloadCipher, batches: Iterator[_Batch], threads: int) -> Iterator[_Opened]:
    with ThreadPoolExecutor(threads, "age-reader") as pool:
        waiting: deque[Future[_Opened]] = deque()
        try:
            for batch in batches:
                waiting.append(pool.submit(_open, cipher, batch))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def decrypt_stream(source: ByteSource, target: BinaryIO, identities: Iterable[Identity], **options: Any) -> int:
    """Decrypt all of ``source`` to ``target``; returns the bytes written. Options as of :class:`AgeReader`.

    When it raises, what was written so far must be thrown away.
    """
    with AgeReader(source, identities, **options) as reader:
        return sum(target.write(piece) for piece in reader.pieces())


class SeekableAgeReader(io.RawIOBase):
    """A seekable stream of plaintext over a seekable binary age file.

    The constructor decrypts the last chunk, so ``size`` is authentic from the start; every other chunk is
    authenticated when it is read. One chunk is cached. Wrap it in ``io.BufferedReader`` for reads that span chunks.
    ``stream`` is not closed.

    Raises:
        PayloadError: the file was cut or extended, or (on reading) changed.
        UnsupportedOperation: ``stream`` is armored or cannot seek.
    """

    def __init__(self, stream: BinaryIO, identities: Iterable[Identity]) -> None:
        super().__init__()
        if not stream.seekable():
            raise io.UnsupportedOperation("random access needs a file that can seek")
        stream.seek(0)
        payload = open_payload(stream, identities)
        if payload.armored:
            raise io.UnsupportedOperation("an armored age file cannot be read at random: remove the armor first")
        self._stream = stream
        self._start = payload.start
        self._cipher = payload.cipher
        self._shape = sealed_shape(stream.seek(0, io.SEEK_END) - payload.start)
        self._position = 0
        self._index = self._shape.chunks - 1
        self._chunk = self._decrypt(self._index)

    @property
    def size(self) -> int:
        """Bytes of plaintext."""
        return self._shape.plain

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """The position in the plaintext."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move; positions behind the end read as empty."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise ValueError(f"cannot seek to {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        """Read up to the end of the current chunk; 0 at the end."""
        if self._position >= self.size:
            return 0
        index, within = divmod(self._position, CHUNK)
        if index != self._index:
            self._chunk, self._index = self._decrypt(index), index
        target = memoryview(buffer).cast("B")
        piece = self._chunk[within : within + len(target)]
        target[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)

    def _decrypt(self, index: int) -> memoryview:
        self._stream.seek(self._start + index * SEALED)
        last = index == self._shape.chunks - 1
        sealed = read_exactly(self._stream, self._shape.sealed - index * SEALED if last else SEALED)
        if not sealed:
            raise PayloadError("the file became shorter while it was read")
        plain = memoryview(bytearray(CHUNK))
        return plain[: self._cipher.open(index, memoryview(sealed), plain, ends=last)]
