"""A Sigstore bundle with a DSSE envelope: the file that a signer leaves beside a model.

Source: the Sigstore bundle format 0.3, and the OpenSSF Model Signing specification, sections 4, 8.1 and 11.
"""

import base64
import binascii
import json
import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeVar

from repoagent.api import read_json_object
from repoagent_verify.manifest import VerificationError

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"


def pre_authentication_encoding_of_0_2(payload: bytes) -> bytes:
    """What version 0.2 of the reference tool signed by mistake: the payload as Python shows bytes."""
    text = f"DSSEV1 {len(PAYLOAD_TYPE)} {PAYLOAD_TYPE} {len(payload)} {payload!r}"
    return text.encode()


_Kind = TypeVar("_Kind")

MEDIA_TYPE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
_MEDIA_TYPES: Final = re.compile(
    r"application/vnd\.dev\.sigstore\.bundle(\.v0\.3\+json|\+json;version=0\.[123])", re.ASCII
)
LARGEST_SIGNATURE: Final = 64 << 20
"""Bytes of a signature file. A million files need about 150 MB, a thousand 150 kB."""
_MOST_CERTIFICATES: Final = 16
_LARGEST_CERTIFICATE: Final = 64 << 10
"""Bytes in DER; those in use have one to eight thousand. The parser makes objects of every name in a certificate, with
the interpreter's lock held: 15 MB of names stopped all threads for 1.5 seconds and took half a gigabyte."""
_MOST_VALUES: Final = 10_000
"""Of a bundle, in which the payload is one text and has none of the marks that are counted."""


class Method(Enum):
    """How a bundle was signed."""

    KEY = "key"
    CERTIFICATE = "certificate"
    SIGSTORE = "sigstore"


@dataclass(frozen=True, slots=True)
class Bundle:
    """A parsed bundle, nothing of it verified. ``payload`` is what ``signature`` covers."""

    method: Method
    payload: bytes
    signature: bytes
    key_hint: str = ""
    """Of a key: hexadecimal SHA-256 of its PEM form, or empty."""
    certificates: tuple[bytes, ...] = ()
    """Of certificates: DER, the signer's first."""
    document: bytes = b""
    """Of a keyless signature: the whole bundle."""


def read_bundle(data: bytes) -> Bundle:
    """Parse a bundle.

    Raises:
        VerificationError: it is not one, or not one of the three methods of the specification.
    """
    what = "the signature"
    document = read_signed_json(data, what, most_values=_MOST_VALUES)
    media_type = document.get("mediaType")
    if not isinstance(media_type, str) or not _MEDIA_TYPES.fullmatch(media_type):
        raise VerificationError(f"{what} has mediaType {media_type!r}, expected '{MEDIA_TYPE}'")
    material = member(document, "verificationMaterial", dict, what)
    envelope = member(document, "dsseEnvelope", dict, what)
    payload_type = envelope.get("payloadType")
    if payload_type != PAYLOAD_TYPE:
        raise VerificationError(f"{what} has payloadType {payload_type!r}, expected '{PAYLOAD_TYPE}'")
    payload = _base64(member(envelope, "payload", str, "its envelope"), "its payload")
    signatures = member(envelope, "signatures", list, "its envelope")
    if len(signatures) != 1 or not isinstance(signatures[0], dict):
        raise VerificationError(f"{what} has {len(signatures)} signatures, expected one")
    signature = _base64(member(signatures[0], "sig", str, "its signature"), "its signature")
    method, hint, certificates = _material(material)
    return Bundle(method, payload, signature, hint, certificates, data if method is Method.SIGSTORE else b"")


def read_signed_json(data: bytes, what: str, *, most_values: int = 0) -> dict[str, Any]:
    """The JSON object in ``data``, which messages call ``what``; ``most_values`` limits what no one vouched for yet.

    Raises:
        VerificationError: it is not an object that every parser reads in the same way.
    """
    try:
        return read_json_object(data, most_values=most_values)
    except ValueError as error:
        raise VerificationError(f"{what} is not valid JSON: {error}") from None


def member(document: dict[str, Any], name: str, kind: type[_Kind], what: str) -> _Kind:
    """Member ``name`` of ``document``, which must be of ``kind``.

    Raises:
        VerificationError: there is none, or it is of another kind.
    """
    value = document.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise VerificationError(f"{what} has no member '{name}' of type {kind.__name__}")
    return value


def _material(material: dict[str, Any]) -> tuple[Method, str, tuple[bytes, ...]]:
    kinds = [name for name in ("publicKey", "x509CertificateChain", "certificate") if material.get(name) is not None]
    if len(kinds) != 1:
        raise VerificationError(
            "the signature's verificationMaterial needs one of publicKey, x509CertificateChain and certificate; "
            f"it has {', '.join(kinds) or 'none'}"
        )
    value = member(material, kinds[0], dict, "its verificationMaterial")
    if kinds[0] == "publicKey":
        hint = value.get("hint") or ""
        if not isinstance(hint, str):
            raise VerificationError("the signature's publicKey has a hint that is not a string")
        return Method.KEY, hint, ()
    if kinds[0] == "certificate":
        return Method.SIGSTORE, "", (_der(value),)
    chain = member(value, "certificates", list, "its x509CertificateChain")
    if not 1 <= len(chain) <= _MOST_CERTIFICATES:
        raise VerificationError(
            f"the signature has {len(chain)} certificates, expected at least one and at most {_MOST_CERTIFICATES}"
        )
    return Method.CERTIFICATE, "", tuple(_der(entry) for entry in chain)


def _der(entry: object) -> bytes:
    if not isinstance(entry, dict):
        raise VerificationError("the signature has a certificate that is not an object")
    der = _base64(member(entry, "rawBytes", str, "a certificate"), "a certificate")
    if len(der) > _LARGEST_CERTIFICATE:
        raise VerificationError(
            f"the signature has a certificate of {len(der)} bytes, expected at most {_LARGEST_CERTIFICATE}"
        )
    return der


def _base64(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise VerificationError(f"{what} is not valid base64") from None


def write_bundle(bundle: Bundle) -> bytes:
    """``bundle`` as JSON. Methods ``key`` and ``certificate`` only; Sigstore's client writes its own."""
    material: dict[str, Any]
    if bundle.method is Method.KEY:
        material = {"publicKey": {"hint": bundle.key_hint}}
    else:
        chain = [{"rawBytes": _text(der)} for der in bundle.certificates]
        material = {"x509CertificateChain": {"certificates": chain}}
    document = {
        "mediaType": MEDIA_TYPE,
        "verificationMaterial": {**material, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": _text(bundle.payload),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{"sig": _text(bundle.signature), "keyid": ""}],
        },
    }
    return json.dumps(document).encode()


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
