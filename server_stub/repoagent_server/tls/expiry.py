"""When certificates end."""

import re
import ssl
from datetime import UTC, datetime
from typing import Final

__all__ = ["earliest_end"]

_BLOCK: Final = re.compile(rb"-----BEGIN CERTIFICATE-----(?:[^-]|-(?!----))*+-----END CERTIFICATE-----")
_VERSION: Final = 0xA0
_FORMATS: Final = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
"""UTCTime and GeneralizedTime, as RFC 5280 has them in certificates."""
_BEFORE_VALIDITY: Final = 3
"""Serial number, algorithm, issuer."""


def earliest_end(pem: bytes) -> float | None:
    """The end of the certificate in ``pem`` that ends first, in seconds since the epoch; None if none can be read.

    Python's ``ssl`` gives this only of certificates that a peer has shown.
    """
    try:
        return min(_end(ssl.PEM_cert_to_DER_cert(block.decode("ascii"))) for block in _BLOCK.findall(pem))
    except (IndexError, KeyError, ValueError):
        return None


def _end(der: bytes) -> float:
    _, start, _ = _member(der, 0)  # Certificate
    _, position, _ = _member(der, start)  # TBSCertificate
    tag, _, stop = _member(der, position)
    position = stop if tag == _VERSION else position
    for _ in range(_BEFORE_VALIDITY):
        position = _member(der, position)[2]
    _, position, _ = _member(der, position)  # Validity
    _, _, position = _member(der, position)  # notBefore
    tag, start, stop = _member(der, position)
    return datetime.strptime(der[start:stop].decode("ascii"), _FORMATS[tag]).replace(tzinfo=UTC).timestamp()


def _member(der: bytes, position: int) -> tuple[int, int, int]:
    """Tag of the member at ``position``, and where its content begins and ends."""
    tag, length = der[position], der[position + 1]
    position += 2
    if length >= 0x80:
        size = length & 0x7F
        length = int.from_bytes(der[position : position + size])
        position += size
    return tag, position, position + length
