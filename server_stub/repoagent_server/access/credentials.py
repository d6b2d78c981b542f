"""What a request shows of its sender: at most one key or token, and the verified certificate of its connection."""

import hashlib
import re
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from repoagent_server.access.rights import NotAuthenticatedError

_KINDS: Final = {"URI": "uri", "DNS": "dns", "email": "email"}
"""Kinds of alternative names, as Python's ``ssl`` calls them and as the access file does."""


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """The names of a verified certificate, as an access file writes them, the most specific first.

    ``sha256:FINGERPRINT`` (of the certificate in DER), then ``uri:``, ``dns:`` and ``email:`` of its alternative names,
    then ``cn:`` of its subject.
    """

    names: tuple[str, ...]

    @classmethod
    def of_connection(cls, tls: "ssl.SSLObject | ssl.SSLSocket | None") -> "PeerIdentity | None":
        """The identity of a connection's peer; None without TLS, without a certificate, or if none was verified."""
        if tls is None:
            return None
        certificate = tls.getpeercert()  # Empty if it was not verified.
        der = tls.getpeercert(binary_form=True)
        return cls.of_certificate(certificate, der) if certificate and der else None

    @classmethod
    def of_certificate(cls, certificate: Mapping[str, Any], der: bytes) -> "PeerIdentity":
        """Of a verified certificate as ``ssl`` gives it, and its bytes."""
        common = (value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName")
        fingerprint = f"sha256:{hashlib.sha256(der).hexdigest()}"
        order = tuple(_KINDS.values())
        ranked = sorted(_alternative(certificate), key=lambda name: order.index(name.partition(":")[0]))
        return cls((fingerprint, *map(canonical, ranked), *(canonical(f"cn:{name}") for name in common)))


def canonical(name: str) -> str:
    """The one spelling of an identity: DNS names do not know upper case."""
    kind, _, value = name.partition(":")
    return f"{kind}:{value.lower()}" if kind in ("dns", "sha256") else name


def _alternative(certificate: Mapping[str, Any]) -> Iterator[str]:
    for kind, value in certificate.get("subjectAltName", ()):
        if kind in _KINDS:
            yield f"{_KINDS[kind]}:{value}"


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
