"""What the operator trusts: public keys, certificates and revocation lists from PEM files, and a root of Sigstore."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from repoagent.api import InvalidArgumentError, read_json_object

_Loaded = TypeVar("_Loaded")

_SIGSTORE_ROOT: Final = "application/vnd.dev.sigstore.trustedroot"
# Possessive, and no further than the next line of dashes: a file of beginnings without ends takes no time.
_BLOCK: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----(?:[^-]|-(?!----))*+-----END \1-----")


@dataclass(frozen=True, slots=True)
class Trust:
    """The roots that a signature may lead to."""

    keys: tuple[ec.EllipticCurvePublicKey, ...] = ()
    certificates: tuple[x509.Certificate, ...] = ()
    revocations: tuple[x509.CertificateRevocationList, ...] = ()
    subject: str | None = None
    """The subject that the signer's certificate must have, as RFC 4514 writes it; None: any."""
    at: datetime | None = None
    """The moment at which certificates must be valid; None: now."""
    sigstore: bytes | None = None
    """The root of Sigstore that keyless signatures lead to: a ``trusted_root.json``."""
    identity: str | None = None
    """Who signs without a key; a ``*`` at the end stands for any branch or tag."""
    issuer: str | None = None
    """The provider that vouches for the identity."""


def read_trust(files: Iterable[tuple[str, bytes]]) -> Trust:
    """Everything in ``files``, which are pairs of a name for messages and a content: PEM, or one root of Sigstore.

    Raises:
        InvalidArgumentError: a file holds something else, a private key, or a key of another kind.
    """
    keys, certificates, revocations, roots = [], [], [], []
    for name, data in files:
        if data.lstrip().startswith(b"{"):
            roots.append(_sigstore_root(name, data))
            continue
        blocks = [(match[1], match[0]) for match in _BLOCK.finditer(data)]
        if not blocks:
            raise InvalidArgumentError(f"{name} is not a PEM file with public keys, certificates or revocation lists")
        for kind, block in blocks:
            if kind == b"PUBLIC KEY":
                keys.append(_public_key(name, block))
            elif kind == b"CERTIFICATE":
                certificates.append(_parsed(name, x509.load_pem_x509_certificate, block))
            elif kind == b"X509 CRL":
                revocations.append(_parsed(name, x509.load_pem_x509_crl, block))
            else:
                # The kind stays unsaid: a model may name any file of this machine, and its owner reads this text.
                raise InvalidArgumentError(
                    f"{name} holds a block of another kind; expected PUBLIC KEY, CERTIFICATE or X509 CRL"
                )
    if len(roots) > 1:
        raise InvalidArgumentError("two roots of Sigstore are given: put both into one trusted_root.json")
    return Trust(tuple(keys), tuple(certificates), tuple(revocations), sigstore=roots[0] if roots else None)


def _sigstore_root(name: str, data: bytes) -> bytes:
    try:
        document = read_json_object(data)
    except ValueError as error:
        raise InvalidArgumentError(f"{name} is not valid JSON: {error}") from None
    kind = document.get("mediaType")
    if not isinstance(kind, str) or not kind.startswith(_SIGSTORE_ROOT):
        raise InvalidArgumentError(f"{name} is JSON, but not a root of Sigstore (trusted_root.json)")
    return data


def _parsed(name: str, load: Callable[[bytes], _Loaded], block: bytes) -> _Loaded:
    try:
        return load(block)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidArgumentError(f"{name} holds a block that cannot be read: {error}") from None


def _public_key(name: str, block: bytes) -> ec.EllipticCurvePublicKey:
    key = _parsed(name, serialization.load_pem_public_key, block)
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise InvalidArgumentError(f"{name} holds a key of another kind; expected P-256, P-384 or P-521")
    return key
