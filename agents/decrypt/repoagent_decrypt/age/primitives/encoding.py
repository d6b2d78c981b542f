"""How age writes bytes: unpadded canonical base64, and Bech32 as in BIP 173, without its length limit; its HKDF."""

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Final

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from repoagent_decrypt.files.errors import HeaderError, InvalidKeyError

_BASE64: Final = re.compile(rb"[A-Za-z0-9+/]*")
_LETTERS: Final = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_VALUES: Final = {letter: value for value, letter in enumerate(_LETTERS)}
_GENERATOR: Final = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)
_CHECKSUM: Final = 6


def b64encode(data: bytes) -> bytes:
    """Standard base64 without ``=``."""
    return base64.b64encode(data).rstrip(b"=")


def b64decode(text: bytes, what: str) -> bytes:
    """Undo :func:`b64encode`.

    Raises:
        HeaderError: ``text`` is padded, not base64, or not the one way to write its value; ``what`` names it.
    """
    try:
        if not _BASE64.fullmatch(text):
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


def bech32_encode(prefix: str, data: bytes | bytearray) -> str:
    """Write ``data`` after ``prefix``, which is lower or upper case throughout; the result has the same case."""
    if prefix not in {prefix.lower(), prefix.upper()}:
        raise InvalidKeyError("a Bech32 prefix may not mix upper and lower case")
    groups = _regroup(data, 8, 5, pad=True)
    values = [*_expand(prefix.lower()), *groups]
    check = _polymod([*values, *([0] * _CHECKSUM)]) ^ 1
    groups += [(check >> 5 * (_CHECKSUM - 1 - i)) & 31 for i in range(_CHECKSUM)]
    text = f"{prefix.lower()}1{''.join(_LETTERS[group] for group in groups)}"
    return text if prefix == prefix.lower() else text.upper()


def bech32_decode_as(text: str, prefix: str, what: str) -> bytes:
    """The data of a key with a given ``prefix``; ``what`` names the kind of key for the message.

    Raises:
        InvalidKeyError: as :func:`bech32_decode`, or the prefix is another one; the message repeats only that of a
            public key.
    """
    found, data = bech32_decode(text)
    if found != prefix:
        found_instead = f", not '{found}1'" if prefix.islower() else ""
        raise InvalidKeyError(f"{what} starts with '{prefix}1'{found_instead}")
    return data


def bech32_decode(text: str) -> tuple[str, bytes]:
    """Return ``(prefix, data)``, the prefix in the case it was written in.

    Raises:
        InvalidKeyError: wrong checksum, alphabet, mixed case or padding. The message does not repeat ``text``.
    """
    if text not in {text.lower(), text.upper()}:
        raise InvalidKeyError("not a Bech32 key: it mixes upper and lower case")
    prefix, separator, rest = text.rpartition("1")
    if not separator or not prefix or len(rest) < _CHECKSUM:
        raise InvalidKeyError("not a Bech32 key: no prefix, or too short")
    if any(not 33 <= ord(letter) <= 126 for letter in prefix):
        raise InvalidKeyError("not a Bech32 key: the prefix has a character outside printable ASCII")
    try:
        groups = [_VALUES[letter] for letter in rest.lower()]
    except KeyError:
        raise InvalidKeyError("not a Bech32 key: it has a character outside the Bech32 alphabet") from None
    if _polymod([*_expand(prefix.lower()), *groups]) != 1:
        raise InvalidKeyError("the key's checksum is wrong: a character was lost or changed")
    return prefix, bytes(_regroup(groups[:-_CHECKSUM], 5, 8, pad=False))


def _expand(prefix: str) -> list[int]:
    codes = [ord(letter) for letter in prefix]
    return [*(code >> 5 for code in codes), 0, *(code & 31 for code in codes)]


def _polymod(values: Iterable[int]) -> int:
    check = 1
    for value in values:
        top = check >> 25
        check = (check & 0x1FFFFFF) << 5 ^ value
        for bit, generator in enumerate(_GENERATOR):
            if top >> bit & 1:
                check ^= generator
    return check


def _regroup(data: Iterable[int], width: int, target: int, *, pad: bool) -> list[int]:
    accumulator = bits = 0
    groups: list[int] = []
    for value in data:
        accumulator = accumulator << width | value
        bits += width
        while bits >= target:
            bits -= target
            groups.append(accumulator >> bits)
            accumulator &= (1 << bits) - 1
    if pad and bits:
        groups.append(accumulator << target - bits)
    elif not pad and (bits >= width or accumulator):
        raise InvalidKeyError("not a Bech32 key: wrong padding")
    return groups
