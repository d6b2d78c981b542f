"""Bech32 as in BIP 173, without its length limit: how age writes keys."""

from collections.abc import Iterable
from typing import Final

from repoagent_decrypt.age.primitives.errors import InvalidKeyError

_ALPHABET: Final = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_VALUES: Final = {letter: value for value, letter in enumerate(_ALPHABET)}
_GENERATOR: Final = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)
_CHECKSUM: Final = 6


def encode(prefix: str, data: bytes | bytearray) -> str:
    """Write ``data`` after ``prefix``, which is lower or upper case throughout; the result has the same case."""
    if prefix not in {prefix.lower(), prefix.upper()}:
        raise InvalidKeyError("a Bech32 prefix may not mix upper and lower case")
    groups = _regroup(data, 8, 5, pad=True)
    values = [*_expand(prefix.lower()), *groups]
    check = _polymod([*values, *([0] * _CHECKSUM)]) ^ 1
    groups += [(check >> 5 * (_CHECKSUM - 1 - i)) & 31 for i in range(_CHECKSUM)]
    text = f"{prefix.lower()}1{''.join(_ALPHABET[group] for group in groups)}"
    return text if prefix == prefix.lower() else text.upper()


def decode_as(text: str, prefix: str, what: str) -> bytes:
    """The data of a key with a given ``prefix``; ``what`` names the kind of key for the message.

    Raises:
        InvalidKeyError: as :func:`decode`, or the prefix is another one; only of a public key the message repeats it.
    """
    found, data = decode(text)
    if found != prefix:
        found_instead = f", not '{found}1'" if prefix.islower() else ""
        raise InvalidKeyError(f"{what} starts with '{prefix}1'{found_instead}")
    return data


def decode(text: str) -> tuple[str, bytes]:
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
