"""Base64url without padding, strictly (RFC 7515, section 2)."""

import binascii
from typing import Final

from repoagent_decrypt.files.errors import DamagedError

__all__ = ["decode"]

_TO_BASE64: Final = bytes.maketrans(b"-_", b"+/")


def decode(text: bytes, what: str) -> bytes:
    """The bytes that ``text`` stands for; messages call it ``what``.

    Raises:
        DamagedError: a character that base64url does not have, an impossible length, or more than one way to write it.
    """
    if b"+" in text or b"/" in text or b"=" in text:
        raise DamagedError(f"{what} is not base64url")
    try:
        decoded = binascii.a2b_base64(text.translate(_TO_BASE64) + b"=" * (-len(text) % 4), strict_mode=True)
    except binascii.Error:
        raise DamagedError(f"{what} is not base64url") from None
    if not _is_canonical(text, decoded):
        raise DamagedError(f"{what} is not base64url: its last character has bits that stand for nothing")
    return decoded


def _is_canonical(text: bytes, decoded: bytes) -> bool:
    """Two texts must not stand for the same bytes: then a file could be changed unnoticed."""
    rest = len(text) % 4
    if not rest:
        return True
    last = binascii.b2a_base64(decoded[-(rest - 1) :], newline=False).rstrip(b"=")
    return last == text[-rest:].translate(_TO_BASE64)
