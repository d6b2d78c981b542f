"""Writing an age file: any stream, in order, with several threads and bounded memory; new recipients for a file."""

import os
import shutil
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol

from repoagent_decrypt.age.armor import ArmorWriter, looks_armored
from repoagent_decrypt.age.header import make_header, open_header, read_header
from repoagent_decrypt.age.source import ByteSource, PeekReader
from repoagent_decrypt.age.stanzas import FileKey, Identity, Recipient
from repoagent_decrypt.age.stream import BATCH_CHUNKS, CHUNK, SEALED, PayloadCipher, new_nonce
from repoagent_decrypt.files.errors import HeaderError
from repoagent_decrypt.files.positional import Sizes, new_file, thread_count

_BATCH = BATCH_CHUNKS * CHUNK


class ByteSink(Protocol):
    """Anything to write bytes to."""

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        """Take all of ``data``."""


def start_payload(recipients: Sequence[Recipient]) -> tuple[bytes, PayloadCipher]:
    """Header and nonce of a new file, and the cipher for its chunks. The file key is used for nothing else."""
    key = FileKey.generate()
    try:
        nonce = new_nonce()
        return make_header(key, recipients) + nonce, PayloadCipher(key, nonce)
    finally:
        key.wipe()


class AgeWriter:
    """Encrypts what is written to it. The header is written by the constructor, the end by ``finish``.

    Use it in ``with``: an exception leaves the file without its final chunk, so that no one takes it for a whole one.
    ``target`` is not closed.

    Args:
        target: Where the age file goes.
        recipients: Who shall be able to read it; a passphrase must be the only one.
        armored: Write ASCII armor.
        threads: As of :class:`~repoagent_decrypt.age.reader.AgeReader`.
    """

    def __init__(
        self,
        target: BinaryIO,
        recipients: Sequence[Recipient],
        *,
        armored: bool = False,
        threads: int | None = None,
    ) -> None:
        start, self._cipher = start_payload(recipients)
        self._armor = ArmorWriter(target) if armored else None
        self._target: ByteSink = self._armor or target
        self._target.write(start)
        self._threads = thread_count(threads)
        self._plain = bytearray()
        self._chunks = 0
        self._waiting: deque[Future[bytes]] = deque()
        self._cleanup = ExitStack()
        self._pool = self._cleanup.enter_context(ThreadPoolExecutor(self._threads, "age-writer"))

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        """Take ``data``. The last chunk is always held back: it may be the final one."""
        self._plain += data
        while len(self._plain) > _BATCH:
            self._submit(bytes(self._plain[:_BATCH]), ends=False)
            del self._plain[:_BATCH]
            self._drain(self._threads)
        return len(data)

    def finish(self) -> None:
        """Write the final chunk and, if armored, the end line."""
        self._submit(bytes(self._plain), ends=True)
        self._plain.clear()
        self._drain(0)
        if self._armor is not None:
            self._armor.finish()
        self._cleanup.close()

    def abort(self) -> None:
        """Stop; what was written is not a valid file."""
        for future in self._waiting:
            future.cancel()
        self._cleanup.close()

    def __enter__(self) -> "AgeWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.abort()

    def _submit(self, plain: bytes, *, ends: bool) -> None:
        self._waiting.append(self._pool.submit(_seal, self._cipher, self._chunks, plain, ends))
        self._chunks += BATCH_CHUNKS

    def _drain(self, leave: int) -> None:
        while len(self._waiting) > leave:
            self._target.write(self._waiting.popleft().result())


def _seal(cipher: PayloadCipher, first: int, plain: bytes, ends: bool) -> bytes:
    sealed = bytearray(max(1, -(-len(plain) // CHUNK)) * SEALED)
    size = cipher.seal(first, memoryview(plain), memoryview(sealed), ends=ends)
    return bytes(memoryview(sealed)[:size])


def encrypt_stream(source: ByteSource, target: BinaryIO, recipients: Sequence[Recipient], **options: Any) -> int:
    """Encrypt all of ``source`` to ``target``; returns the plaintext bytes. Options as of :class:`AgeWriter`."""
    total = 0
    with AgeWriter(target, recipients, **options) as writer:
        while data := source.read(_BATCH):
            total += writer.write(data)
    return total


_BLOCK = 1 << 20


def rewrap_file(source: Path, target: Path, identities: Sequence[Identity], recipients: Sequence[Recipient]) -> Sizes:
    """Write ``source`` to the new file ``target`` with a header for ``recipients`` only; the payload is copied.

    The file key stays the same. Those who could open the old file and kept it, or its file key, can open the payload
    still: to shut someone out for good, decrypt and encrypt again.

    Raises:
        AgeError: the header is bad or no identity fits; an armored file is a ``HeaderError``. The payload is not
            looked at: damage to it stays, and is found when it is decrypted.
    """
    with source.open("rb", buffering=0) as stream:
        reader = PeekReader(stream)
        if looks_armored(reader):
            raise HeaderError("an armored file cannot be given new recipients: decrypt and encrypt it")
        header = read_header(reader)
        key = open_header(header, identities)
        try:
            start = make_header(key, recipients)
        finally:
            key.wipe()
        with new_file(target) as fd, open(fd, "wb", closefd=False) as out:
            out.write(start)
            stream.seek(header.size)
            shutil.copyfileobj(stream, out, _BLOCK)
        return Sizes(os.fstat(stream.fileno()).st_size, target.stat().st_size)
