"""From the start of a file to its payload: armor, header, identities, nonce."""

from collections.abc import Iterable
from dataclasses import dataclass

from repoagent_decrypt.age.armor import ArmorReader, looks_armored
from repoagent_decrypt.age.header import open_header, read_header
from repoagent_decrypt.age.primitives.errors import HeaderError
from repoagent_decrypt.age.source import ByteSource, PeekReader, read_exactly
from repoagent_decrypt.age.stanzas import Identity
from repoagent_decrypt.age.stream import NONCE, PayloadCipher

__all__ = ["OpenedPayload", "open_payload"]


@dataclass(frozen=True, slots=True)
class OpenedPayload:
    """``source`` stands at the first chunk; in the file that is byte ``start``, unless the file is armored."""

    cipher: PayloadCipher
    source: PeekReader
    start: int
    armored: bool


def open_payload(stream: ByteSource, identities: Iterable[Identity], *, armored: bool | None = None) -> OpenedPayload:
    """Find out whether ``stream`` is armored (unless told), parse its header and unlock it.

    Raises every error of :mod:`~repoagent_decrypt.age.primitives.errors` but ``PayloadError``.
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
