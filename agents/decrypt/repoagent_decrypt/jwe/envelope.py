"""The five parts of a file and what its header asks for."""

import binascii
import os
from dataclasses import dataclass
from typing import Any, Final

from repoagent.api import read_json_object
from repoagent_decrypt.files.errors import DamagedError

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


LARGEST: Final = 2 << 30
"""Bytes of plaintext. Only the end of a JWE shows whether it is authentic, so large ones are the wrong format."""
_HEAD: Final = 64 << 10
_LONGEST_NAME: Final = 64
"""Characters of an algorithm, here and in messages."""
_TAG_TEXT: Final = 22
"""Characters of a tag of 16 bytes."""
_KEY_SIZES: Final = {"A128GCM": 16, "A192GCM": 24, "A256GCM": 32}


@dataclass(frozen=True, slots=True)
class Envelope:
    """What precedes and follows the ciphertext, and where that lies.

    Attributes:
        algorithm: How the content key is wrapped (``alg``).
        kid: The name of the key, if the header has one.
        key_size: Bytes of the content key, by ``enc``.
        protected: The header as it is written: the additional data.
        wrapped: The wrapped content key.
        nonce: 12 bytes.
        tag: 16 bytes.
        start: Where the text of the ciphertext begins.
        end: Where it ends.
    """

    algorithm: str
    kid: str | None
    key_size: int
    protected: bytes
    wrapped: bytes
    nonce: bytes
    tag: bytes
    start: int
    end: int

    @property
    def plain_size(self) -> int:
        """Bytes of plaintext."""
        return (self.end - self.start) * 3 // 4


def read_envelope(fd: int) -> Envelope:
    """Read the head and the end of the file ``fd``.

    Raises:
        DamagedError: not a JWE in the compact form, one with options that are not supported, or too large.
    """
    head = os.pread(fd, _HEAD, 0)
    parts = head.split(b".", 3)
    if len(parts) != 4:
        raise DamagedError("not a JWE in the compact form: no five parts with dots between them")
    protected, wrapped, nonce, _ = parts
    document = _header(protected)
    key_size = _key_size(document)
    start = len(head) - len(parts[3])
    end, tag = _tail(fd, start)
    envelope = Envelope(
        algorithm=str(document.get("alg"))[:_LONGEST_NAME],
        kid=document.get("kid"),
        key_size=key_size,
        protected=protected,
        wrapped=decode(wrapped, "the encrypted key"),
        nonce=_sized(decode(nonce, "the nonce"), 12, "the nonce"),
        tag=tag,
        start=start,
        end=end,
    )
    if envelope.plain_size > LARGEST:
        raise DamagedError(
            f"{envelope.plain_size} bytes of plaintext, at most {LARGEST} are accepted: use age or Tink, whose parts "
            "are authenticated one by one"
        )
    return envelope


def _tail(fd: int, start: int) -> tuple[int, bytes]:
    """Where the ciphertext ends, and the tag behind it. One newline at the end of the file does not count."""
    size = os.fstat(fd).st_size
    last = os.pread(fd, _TAG_TEXT + 3, max(0, size - _TAG_TEXT - 3))
    text = last.removesuffix(b"\n").removesuffix(b"\r")
    end = size - (len(last) - len(text)) - _TAG_TEXT - 1
    if end < start or text[-_TAG_TEXT - 1 : -_TAG_TEXT] != b".":
        raise DamagedError("not a JWE in the compact form, or cut short: it does not end with a tag of 16 bytes")
    return end, _sized(decode(text[-_TAG_TEXT:], "the tag"), 16, "the tag")


def _header(protected: bytes) -> dict[str, Any]:
    try:
        document = read_json_object(decode(protected, "the header"))
    except ValueError as error:
        if isinstance(error, DamagedError):
            raise
        raise DamagedError("the header is not a JSON object") from None
    for member in ("crit", "zip"):
        if member in document:
            raise DamagedError(f"the header has '{member}', which is not supported")
    return document


def _key_size(document: dict[str, Any]) -> int:
    encryption = document.get("enc")
    size = _KEY_SIZES.get(encryption) if isinstance(encryption, str) else None
    if size is None:
        name = str(encryption)[:_LONGEST_NAME]
        raise DamagedError(f"the content is encrypted with {name!r}, expected one of {', '.join(_KEY_SIZES)}")
    return size


def _sized(data: bytes, size: int, what: str) -> bytes:
    if len(data) != size:
        raise DamagedError(f"{what} has {len(data)} bytes, expected {size}")
    return data
