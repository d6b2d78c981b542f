"""Sets of public keys (JWKS, RFC 7517) that tokens are verified with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson

from repoagent.errors import InvalidArgumentError, UnsupportedError
from repoagent.installing import install_hint

if TYPE_CHECKING:
    from jwt import PyJWK

#: Algorithms of tokens, and the kind of key and the curve that each needs. Those with a shared secret are left out:
#: the access file would hold it.
ALGORITHMS: Final[Mapping[str, tuple[str, str]]] = {
    "RS256": ("RSA", ""),
    "RS384": ("RSA", ""),
    "RS512": ("RSA", ""),
    "PS256": ("RSA", ""),
    "PS384": ("RSA", ""),
    "PS512": ("RSA", ""),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}
MOST_BYTES: Final = 1 << 20
_MOST_KEYS: Final = 256
_LEAST_RSA_BITS: Final = 2048
_FITTING: Final = 4
"""Keys that are tried for one token."""


@dataclass(frozen=True, slots=True)
class _Key:
    id: str
    algorithm: str
    key: "PyJWK"


@dataclass(frozen=True, slots=True)
class KeySet:
    """Keys for the algorithms of one issuer. Empty: no token is valid."""

    keys: Sequence[_Key] = field(default=())

    def fitting(self, key_id: str | None, algorithm: str) -> list["PyJWK"]:
        """The keys for a token of ``algorithm`` that names ``key_id``; without a name the only key there is."""
        found = [one.key for one in self.keys if one.algorithm == algorithm and key_id in (None, one.id)]
        return found[:_FITTING] if key_id is not None or len(found) == 1 else []


def read_key_set(data: bytes, algorithms: Sequence[str]) -> KeySet:
    """The keys of a set that fit ``algorithms``. Keys of other kinds and for other uses are left out.

    Raises:
        InvalidArgumentError: this is not a key set, or no key of it can be used.
        UnsupportedError: the library that reads keys is not installed.
    """
    if len(data) > MOST_BYTES:
        raise InvalidArgumentError(f"the key set has more than {MOST_BYTES} bytes")
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidArgumentError(f"the key set is not valid JSON: {error}") from None
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list) or len(entries) > _MOST_KEYS:
        raise InvalidArgumentError(f"the key set needs 'keys', a list of at most {_MOST_KEYS} keys (JWKS, RFC 7517)")
    keys = tuple(
        key for entry in entries if isinstance(entry, dict) for name in algorithms if (key := _key(entry, name))
    )
    if not keys:
        raise InvalidArgumentError(f"the key set has no key for {', '.join(algorithms)}")
    return KeySet(keys)


def _key(entry: Mapping[str, Any], algorithm: str) -> _Key | None:
    """``entry`` as a key for ``algorithm``; None if it is not one."""
    kind, curve = ALGORITHMS[algorithm]
    if entry.get("kty") != kind or entry.get("crv", "") != curve or entry.get("alg", algorithm) != algorithm:
        return None
    operations = entry.get("key_ops", ["verify"])
    if entry.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        return None
    library = load_library()
    try:
        public = {name: value for name, value in entry.items() if name in _PUBLIC}
        key = library.PyJWK(public, algorithm)
    except Exception:  # Of a set with keys that this library does not know, the others are used.
        return None
    if getattr(key.key, "key_size", _LEAST_RSA_BITS) < _LEAST_RSA_BITS and kind == "RSA":
        return None
    return _Key(str(entry.get("kid", "")), algorithm, key)


_PUBLIC: Final = frozenset({"kty", "crv", "x", "y", "n", "e", "kid", "use", "alg"})


def load_library() -> Any:
    """PyJWT, which only servers with tokens need.

    Raises:
        UnsupportedError: it is not installed.
    """
    try:
        import cryptography  # noqa: F401
        import jwt
    except ImportError:
        hint = install_hint("repoagent-server", "jwt")
        raise UnsupportedError(f"tokens need the library PyJWT with cryptography; {hint}") from None
    return jwt
