"""Keys for JWE: a JWK (RFC 7517), a set of them, the raw bytes of an AES key, or a private RSA key in PEM."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from repoagent.api import read_json
from repoagent_decrypt.files.errors import DamagedError, KeyFormatError
from repoagent_decrypt.jwe.envelope import decode

_SIZES: Final = (16, 24, 32)
_MOST_BITS: Final = 16_384


@dataclass(frozen=True, slots=True, repr=False)
class JweKey:
    """An AES key or a private RSA key, and the ``kid`` that names it, if there is one."""

    secret: bytes | rsa.RSAPrivateKey
    kid: str | None = None

    def __repr__(self) -> str:
        return f"JweKey(kid={self.kid!r})"


def parse_keys(data: bytes, source: str) -> tuple[JweKey, ...]:
    """The keys in ``data``; ``source`` names it in messages.

    Raises:
        KeyFormatError: none of the forms, or a key of another type or size.
    """
    text = data.strip()
    if text.startswith(b"-----BEGIN"):
        return (_from_pem(text, source),)
    if text.startswith(b"{") and (len(data) not in _SIZES or text.endswith(b"}")):
        return _from_json(text, source)
    if len(data) in _SIZES:
        return (JweKey(data),)
    raise KeyFormatError(
        f"{source} is not a key for JWE: expected a JWK, 16, 24 or 32 raw bytes, or a private RSA key in PEM"
    )


def _from_pem(text: bytes, source: str) -> JweKey:
    try:
        key = load_pem_private_key(text, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise KeyFormatError(f"{source}: not a private key in PEM, or one with a password") from None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise KeyFormatError(f"{source}: a key of another kind; expected RSA")
    return JweKey(key)


def _from_json(text: bytes, source: str) -> tuple[JweKey, ...]:
    try:
        document = read_json(text)
        entries: Sequence[Any] = document.get("keys", [document])
        return tuple(_from_jwk(entry, source) for entry in entries)
    except DamagedError as error:
        raise KeyFormatError(f"{source}: {error}") from None
    except KeyFormatError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise KeyFormatError(f"{source} is not a JWK ({type(error).__name__})") from None


def _from_jwk(entry: dict[str, Any], source: str) -> JweKey:
    kid = entry.get("kid")
    match entry["kty"]:
        case "oct":
            secret = decode(entry["k"].encode(), "the member 'k' of the JWK")
            if len(secret) not in _SIZES:
                raise KeyFormatError(f"{source}: an AES key of {len(secret)} bytes, expected 16, 24 or 32")
            return JweKey(secret, kid)
        case "RSA":
            return JweKey(_rsa(entry, source), kid)
        case other:
            raise KeyFormatError(f"{source}: a key of type {other!r}, expected 'oct' or 'RSA'")


def _rsa(entry: dict[str, Any], source: str) -> rsa.RSAPrivateKey:
    numbers = {name: _number(entry, name) for name in ("n", "e", "d", "p", "q", "dp", "dq", "qi")}
    if numbers["n"].bit_length() > _MOST_BITS:
        raise KeyFormatError(f"{source}: an RSA key of more than {_MOST_BITS} bits")
    public = rsa.RSAPublicNumbers(numbers["e"], numbers["n"])
    private = rsa.RSAPrivateNumbers(
        p=numbers["p"],
        q=numbers["q"],
        d=numbers["d"],
        dmp1=numbers["dp"],
        dmq1=numbers["dq"],
        iqmp=numbers["qi"],
        public_numbers=public,
    )
    return private.private_key()


def _number(entry: dict[str, Any], name: str) -> int:
    return int.from_bytes(decode(entry[name].encode(), f"the member '{name}' of the JWK"), "big")
