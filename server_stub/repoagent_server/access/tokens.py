"""Tokens (JWT), and the sets of public keys (JWKS, RFC 7517) that they are verified with."""

import logging
from base64 import urlsafe_b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson

from repoagent.errors import InvalidArgumentError, UnsupportedError
from repoagent.installing import install_hint
from repoagent.nested_text import check_depth
from repoagent_server.access.rights import NotAuthenticatedError

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


logger = logging.getLogger(__name__)

_BAD_TOKEN: Final = "the token is not valid"  # noqa: S105 - a text
_TYPES: Final = frozenset({None, "JWT", "jwt", "at+jwt", "application/at+jwt"})
"""What a token may call itself. One for another purpose, such as a log-out, gives no access."""
_NO_EXTENSIONS: Final = ("crit", "b64")


@dataclass(frozen=True, slots=True)
class TokenIssuer:
    """Whose tokens are accepted, and how they are verified."""

    name: str
    """In the access file."""
    issuer: str
    """The claim ``iss``."""
    audience: str
    algorithms: tuple[str, ...]
    source: str
    """File or URL of the key set."""
    leeway: int = 0
    """Seconds that the clocks of issuer and server may differ by."""
    keys: KeySet = field(default_factory=KeySet)


class UnknownKeyError(NotAuthenticatedError):
    """A token names a key that the key set does not have: its issuer may have a new one."""

    def __init__(self, issuer: TokenIssuer) -> None:
        super().__init__(_BAD_TOKEN)
        self.issuer = issuer


def read_token(token: bytes, issuers: Mapping[str, TokenIssuer]) -> tuple[Mapping[str, Any], float]:
    """The claims of a valid token of one of ``issuers`` (by their claim ``iss``), and when it ends.

    Raises:
        NotAuthenticatedError: it is not valid. What is wrong with an unsigned one stays in the log.
    """
    try:
        return _read(token.decode("ascii"), issuers)
    except UnknownKeyError as error:
        logger.debug("a token is refused: issuer '%s' has no such key", error.issuer.name)
        raise
    except NotAuthenticatedError:
        raise
    except Exception as error:  # Whatever a token makes the library do, it is not valid.
        logger.debug("a token is refused: %s: %s", type(error).__name__, error)
        raise NotAuthenticatedError(_BAD_TOKEN) from None


def _read(token: str, issuers: Mapping[str, TokenIssuer]) -> tuple[Mapping[str, Any], float]:
    for part in token.split(".")[:2]:
        check_depth(urlsafe_b64decode(part + "=" * (-len(part) % 4)).decode("utf-8", "replace"))
    jwt = load_library()
    unverified = jwt.decode_complete(token, options={"verify_signature": False})
    header, claimed = unverified["header"], unverified["payload"].get("iss")
    issuer = issuers.get(claimed) if isinstance(claimed, str) else None
    algorithm = header.get("alg")
    if issuer is None or algorithm not in issuer.algorithms:
        raise ValueError("its issuer or its algorithm is not in the access file")
    if header.get("typ") not in _TYPES or any(name in header for name in _NO_EXTENSIONS):
        raise ValueError("its header asks for something else")
    key_id = header.get("kid")
    keys = issuer.keys.fitting(key_id, algorithm)
    if not keys:
        raise UnknownKeyError(issuer)
    return _verified(jwt, token, issuer, algorithm, keys)


def _verified(
    jwt: Any, token: str, issuer: TokenIssuer, algorithm: str, keys: Sequence[Any]
) -> tuple[Mapping[str, Any], float]:
    for number, key in enumerate(keys):
        try:
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=issuer.audience,
                issuer=issuer.issuer,
                leeway=issuer.leeway,
                options={"require": ["exp", "iss", "aud"], "verify_sub": False, "verify_jti": False},
            )
        except jwt.InvalidSignatureError:
            if number + 1 == len(keys):
                raise
            continue
        except jwt.ExpiredSignatureError:
            raise NotAuthenticatedError("the token has expired") from None
        return claims, float(claims["exp"]) + issuer.leeway
    raise ValueError("no key")
