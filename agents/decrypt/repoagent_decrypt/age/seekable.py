"""Random access into an encrypted file: only the chunks that are looked at get decrypted."""

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING, BinaryIO

from repoagent_decrypt.age.payload import open_payload
from repoagent_decrypt.age.primitives.errors import PayloadError
from repoagent_decrypt.age.source import read_exactly
from repoagent_decrypt.age.stanzas import Identity
from repoagent_decrypt.age.stream import CHUNK, SEALED, sealed_shape

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = ["SeekableAgeReader"]


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
