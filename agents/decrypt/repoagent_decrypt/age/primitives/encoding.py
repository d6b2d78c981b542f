"""Unpadded canonical base64, and the one key derivation that age uses."""

import base64
import binascii
import re
from typing import Final

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from repoagent_decrypt.age.primitives.errors import HeaderError

_ALPHABET: Final = re.compile(rb"[A-Za-z0-9+/]*")


def b64encode(data: bytes) -> bytes:
    """Standard base64 without ``=``."""
    return base64.b64encode(data).rstrip(b"=")


def b64decode(text: bytes, what: str) -> bytes:
    """Undo :func:`b64encode`.

    Raises:
        HeaderError: ``text`` is padded, not base64, or not the one way to write its value; ``what`` names it.
    """
    try:
        if not _ALPHABET.fullmatch(text):
            raise HeaderError(f"{what} has characters outside unpadded base64")
        data = base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        raise HeaderError(f"{what} is not base64: impossible length") from None
    if b64encode(data) != text:
        raise HeaderError(f"{what} is not canonical base64")
    return data


def hkdf(secret: bytes | bytearray, salt: bytes, info: bytes) -> bytes:
    """HKDF-SHA-256, 32 bytes."""
    return HKDF(algorithm=SHA256(), length=32, salt=salt, info=info).derive(secret)
