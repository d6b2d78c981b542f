"""One file: its header, its shape, and the cipher of its segments.

A file is a header (its own length in one byte, a salt, seven bytes of nonce), then segments of AES-GCM. The header and
the first segment together have the size of a segment, so segment ``i`` starts at ``i * segment_size``. The nonce of a
segment has its number and whether it is the last.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from repoagent_decrypt.files.errors import DamagedError
from repoagent_decrypt.tink.keyset import StreamingKey

TAG: Final = 16
PREFIX: Final = 7
_MOST_SEGMENTS: Final = 1 << 32
_HASHES: Final[dict[str, Callable[[], hashes.HashAlgorithm]]] = {
    "SHA1": hashes.SHA1,
    "SHA256": hashes.SHA256,
    "SHA512": hashes.SHA512,
}


def header_size(derived_size: int) -> int:
    """Bytes of the header: the length byte, a salt as long as the derived key, the nonce's prefix."""
    return 1 + derived_size + PREFIX


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
