"""Tokens (JWT, RFC 7519) and their issuers: verified by PyJWT, with the algorithms that the operator names."""

import logging
from base64 import urlsafe_b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from repoagent.nested_text import check_depth
from repoagent_server.access.key_sets import KeySet, load_library
from repoagent_server.access.rights import NotAuthenticatedError

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
