"""What a request shows of its sender: at most one key or token, and the certificate of its connection."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from repoagent_server.access.errors import NotAuthenticatedError
from repoagent_server.access.identity import PeerIdentity

AUTHORIZATION: Final = "authorization"
API_KEY: Final = "x-api-key"

CREDENTIALS: Final = frozenset({AUTHORIZATION, API_KEY})
"""The headers that hold keys, in lower case."""

_LONGEST: Final = 8192
_BEARER: Final = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([!-+\--~]+)")
_KEY: Final = re.compile(rb"[!-+\--~]+")
"""Visible ASCII without the comma, with which proxies join headers that were sent twice."""


@dataclass(frozen=True, slots=True)
class Given:
    """What came with a request."""

    secret: bytes = field(default=b"", repr=False)
    """A key or a token."""
    peer: PeerIdentity | None = None


_NOTHING: Final = Given()
_AUTHORIZATION: Final = AUTHORIZATION.encode()
_API_KEY: Final = API_KEY.encode()
_LENGTHS: Final = frozenset({len(AUTHORIZATION), len(API_KEY)})
_AROUND: Final = b" \t"
"""What may stand around a value and is not part of it (RFC 9110); parsers leave it behind the value."""


def given_in(headers: Iterable[tuple[bytes, bytes]], peer: PeerIdentity | None = None) -> Given:
    """What ``headers`` show, whose names may have any case. Raises as :func:`given`."""
    authorization: list[bytes] = []
    keys: list[bytes] = []
    for name, value in headers:
        if len(name) in _LENGTHS:
            lower = name.lower()
            if lower == _AUTHORIZATION:
                authorization.append(value.strip(_AROUND))
            elif lower == _API_KEY:
                keys.append(value.strip(_AROUND))
    return given(authorization, keys, peer)


def given(authorization: Sequence[bytes], api_key: Sequence[bytes], peer: PeerIdentity | None = None) -> Given:
    """What the values of the two headers, and the certificate, show. A key or token goes before the certificate.

    Raises:
        NotAuthenticatedError: there are several keys, or one that no client can have.
    """
    count = len(authorization) + len(api_key)
    if not count:
        return _NOTHING if peer is None else Given(peer=peer)
    if count > 1:
        raise NotAuthenticatedError(f"the request has several keys; send one '{AUTHORIZATION}' or one '{API_KEY}'")
    if authorization:
        match = _BEARER.fullmatch(authorization[0])
        if match is None or len(match[1]) > _LONGEST:
            raise NotAuthenticatedError(f"the header '{AUTHORIZATION}' must be 'Bearer KEY', with one key")
        return Given(match[1])
    if len(api_key[0]) > _LONGEST or _KEY.fullmatch(api_key[0]) is None:
        raise NotAuthenticatedError(f"the header '{API_KEY}' must be one key")
    return Given(api_key[0])
