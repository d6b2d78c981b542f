"""Who is at the other end of a TLS connection, by the certificate that it has shown and that was verified."""

import hashlib
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

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
