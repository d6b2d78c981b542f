"""From a key of ours to the key of the content (RFC 7518, section 4)."""

from collections.abc import Iterator, Sequence
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap

from repoagent_decrypt.files.errors import DamagedError
from repoagent_decrypt.jwe.envelope import Envelope
from repoagent_decrypt.jwe.keys import JweKey

__all__ = ["content_keys"]

_WRAPS: Final = {"A128KW": 16, "A192KW": 24, "A256KW": 32}
_OAEP: Final = {"RSA-OAEP": hashes.SHA1, "RSA-OAEP-256": hashes.SHA256}
_KNOWN: Final = ("dir", *_WRAPS, *_OAEP)


def content_keys(envelope: Envelope, keys: Sequence[JweKey]) -> Iterator[bytes]:
    """The content keys that ``keys`` lead to. Only the content's own tag shows which one is right.

    Raises:
        DamagedError: the header asks for an algorithm that is not supported.
    """
    if envelope.algorithm not in _KNOWN:
        raise DamagedError(f"the key is wrapped with {envelope.algorithm!r}, expected one of {', '.join(_KNOWN)}")
    for key in keys:
        if envelope.kid is not None and key.kid is not None and key.kid != envelope.kid:
            continue
        found = _unwrap(envelope, key.secret)
        if found is not None and len(found) == envelope.key_size:
            yield found


def _unwrap(envelope: Envelope, secret: bytes | rsa.RSAPrivateKey) -> bytes | None:
    """The content key; None if ``secret`` is of another kind, or another key."""
    algorithm = envelope.algorithm
    try:
        if isinstance(secret, rsa.RSAPrivateKey):
            if algorithm not in _OAEP:
                return None
            chosen = _OAEP[algorithm]
            return secret.decrypt(envelope.wrapped, padding.OAEP(padding.MGF1(chosen()), chosen(), None))
        if algorithm == "dir":
            return secret if not envelope.wrapped else None
        return aes_key_unwrap(secret, envelope.wrapped) if _WRAPS.get(algorithm) == len(secret) else None
    except (InvalidUnwrap, ValueError):
        return None
