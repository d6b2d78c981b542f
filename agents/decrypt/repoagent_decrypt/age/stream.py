"""The payload: 64 KiB chunks of ChaCha20-Poly1305, counted, the last one marked.

Sizes and chunk arithmetic, and one batch of chunks at a time. This is the plain version that the threaded readers
and writers are built from.
"""

import secrets
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from repoagent_decrypt.age.primitives.encoding import hkdf
from repoagent_decrypt.age.stanzas import FileKey
from repoagent_decrypt.files.errors import PayloadError

CHUNK: Final = 64 << 10
TAG: Final = 16
SEALED: Final = CHUNK + TAG
NONCE: Final = 16
"""Bytes of random salt between header and payload."""
BATCH_CHUNKS: Final = 16
"""Chunks (1 MiB) that one thread does at a time: enough to hide the hand-over, small enough for the caches."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a payload divides: ``chunks`` in all, ``plain`` and ``sealed`` bytes, the nonce not counted."""

    chunks: int
    plain: int
    sealed: int


def plain_shape(size: int) -> Shape:
    """The shape of ``size`` bytes of plaintext once encrypted."""
    chunks = max(1, -(-size // CHUNK))
    return Shape(chunks, size, size + chunks * TAG)


def sealed_shape(size: int) -> Shape:
    """The shape of ``size`` bytes of payload behind the nonce.

    Raises:
        PayloadError: no payload can have this size, so it was cut or extended.
    """
    full, rest = divmod(size, SEALED)
    chunks = full + (rest > 0)
    if size < TAG or 0 < rest < TAG or (rest == TAG and full):
        raise PayloadError(f"the payload is cut short or damaged: {size} bytes cannot be right")
    return Shape(chunks, size - chunks * TAG, size)


def new_nonce() -> bytes:
    """A fresh payload nonce; one per file."""
    return secrets.token_bytes(NONCE)


class DamagedBatchError(PayloadError):
    """A batch is not sound. Its first ``good`` bytes of plaintext are authentic."""

    def __init__(self, good: int, message: str) -> None:
        self.good = good
        super().__init__(message)


class PayloadCipher:
    """Seals and opens runs of chunks. Has no state: may be used by many threads at once."""

    def __init__(self, key: FileKey, nonce: bytes) -> None:
        self._aead = ChaCha20Poly1305(hkdf(key.secret, nonce, b"payload"))

    def open(self, first: int, sealed: memoryview, plain: memoryview, *, ends: bool) -> int:
        """Decrypt the chunks in ``sealed``, numbered from ``first``, into ``plain``; the last is final if ``ends``.

        Returns the plaintext bytes. ``DamagedBatchError`` states how many bytes before the bad chunk are good;
        what follows in ``plain`` is unauthenticated and must not be used.
        """
        if not len(sealed):
            raise DamagedBatchError(0, "the payload was cut: it has not one chunk")
        done = 0
        starts = range(0, len(sealed), SEALED)
        for number, start in enumerate(starts):
            chunk = sealed[start : start + SEALED]
            room = plain[done : done + max(0, len(chunk) - TAG)]
            final = ends and number == len(starts) - 1
            if not self._open_chunk(first + number, chunk, room, final=final):
                raise self._damage(done, first + number, chunk, room, final=final)
            done += len(room)
        return done

    def seal(self, first: int, plain: memoryview, sealed: memoryview, *, ends: bool) -> int:
        """Encrypt ``plain`` in chunks numbered from ``first`` into ``sealed``; returns the bytes written."""
        done = 0
        starts = range(0, len(plain), CHUNK) or range(1)
        for number, start in enumerate(starts):
            chunk = plain[start : start + CHUNK]
            final = ends and number == len(starts) - 1
            size = len(chunk) + TAG
            self._aead.encrypt_into(_nonce(first + number, final), chunk, None, sealed[done : done + size])
            done += size
        return done

    def _open_chunk(self, index: int, chunk: memoryview, room: memoryview, *, final: bool) -> bool:
        if len(chunk) < TAG or (index and not len(room)):
            return False
        try:
            self._aead.decrypt_into(_nonce(index, final), chunk, None, room)
        except InvalidTag:
            return False
        return True

    def _damage(self, good: int, index: int, chunk: memoryview, room: memoryview, *, final: bool) -> DamagedBatchError:
        # A full chunk that authenticates with the other mark is sound; the file around it is not.
        if len(chunk) == SEALED and self._open_chunk(index, chunk, room, final=not final):
            why = "the end is missing" if final else "something follows its final chunk"
            return DamagedBatchError(good + len(room), f"the payload was cut or extended: {why} (chunk {index})")
        return DamagedBatchError(good, f"the payload was changed or cut short: chunk {index} does not authenticate")


def _nonce(index: int, final: bool) -> bytes:
    return index.to_bytes(11, "big") + (b"\x01" if final else b"\x00")
