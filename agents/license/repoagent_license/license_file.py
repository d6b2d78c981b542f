"""License files: terms, signed by the vendor.

A license file is a DSSE envelope (<https://github.com/secure-systems-lab/dsse>): the terms as base64, and an Ed25519
signature over their type and bytes, so nothing has to be brought into a canonical form::

    {"payloadType": "application/vnd.repoagent.license+json", "payload": BASE64, "signatures": [{"sig": BASE64}]}

The payload is a JSON object; its members are those of :class:`~repoagent_license.terms.Terms`.
"""

import base64
import binascii
import json
from typing import Any, Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from repoagent.api import InvalidArgumentError, read_json_object
from repoagent_license.terms import Terms, parse_time

PAYLOAD_TYPE: Final = "application/vnd.repoagent.license+json"
LARGEST: Final = 1 << 16
"""Bytes of a license file; more is not read."""
_MEMBERS: Final = frozenset({"digest", "expires", "hosts", "licensee", "models", "not_before"})


def read_public_key(pem: bytes) -> Ed25519PublicKey:
    """Read a PEM file, as ``openssl pkey -pubout`` writes it.

    Raises:
        InvalidArgumentError: it is another kind of file, or of key.
    """
    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidArgumentError("the public key is not an Ed25519 key in PEM form")
    return key


def read_license(content: bytes, key: Ed25519PublicKey) -> Terms:
    """The terms in a license file.

    Raises:
        InvalidArgumentError: it is not a license, not signed with ``key``, or has terms that this version does not
            know: ignoring a condition would allow more than the vendor did.
    """
    document = _json(_verified_payload(content, key), "the license")
    if unknown := sorted(set(document) - _MEMBERS):
        raise InvalidArgumentError(f"the license has conditions that this version does not know: {', '.join(unknown)}")
    return Terms(
        models=_texts(document, "models"),
        not_before=parse_time(document.get("not_before"), "'not_before' in the license"),
        expires=parse_time(document.get("expires"), "'expires' in the license"),
        hosts=_texts(document, "hosts", needed=False),
        digest=_text(document, "digest"),
        licensee=_text(document, "licensee"),
    )


def issue_license(key: Ed25519PrivateKey, terms: Terms) -> bytes:
    """The content of a license file, for those who have the private key."""
    document: dict[str, Any] = {
        "models": list(terms.models),
        "not_before": terms.not_before.isoformat(),
        "expires": terms.expires.isoformat(),
    }
    optional = {"hosts": list(terms.hosts), "digest": terms.digest, "licensee": terms.licensee}
    document |= {name: value for name, value in optional.items() if value}
    payload = json.dumps(document).encode()
    signature = key.sign(_signed_bytes(PAYLOAD_TYPE, payload))
    envelope = {"payloadType": PAYLOAD_TYPE, "payload": _to_base64(payload)}
    return json.dumps({**envelope, "signatures": [{"sig": _to_base64(signature)}]}, indent=2).encode() + b"\n"


def _verified_payload(content: bytes, key: Ed25519PublicKey) -> bytes:
    envelope = _json(content, "the license file")
    payload = _from_base64(envelope.get("payload"))
    signatures = envelope.get("signatures")
    if envelope.get("payloadType") != PAYLOAD_TYPE or payload is None or not isinstance(signatures, list):
        raise InvalidArgumentError(f"the license file is not a signed {PAYLOAD_TYPE}")
    message = _signed_bytes(PAYLOAD_TYPE, payload)
    if not any(_is_signed(message, signature, key) for signature in signatures):
        raise InvalidArgumentError("the license file is not signed with the trusted key")
    return payload


def _is_signed(message: bytes, signature: Any, key: Ed25519PublicKey) -> bool:
    value = _from_base64(signature.get("sig")) if isinstance(signature, dict) else None
    if value is None:
        return False
    try:
        key.verify(value, message)
    except InvalidSignature:
        return False
    return True


def _signed_bytes(kind: str, payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding."""
    name = kind.encode()
    return b"DSSEv1 %d %s %d %s" % (len(name), name, len(payload), payload)


def _json(content: bytes, what: str) -> dict[str, Any]:
    try:
        return read_json_object(content)
    except ValueError:
        raise InvalidArgumentError(f"{what} is not a JSON object") from None


def _texts(document: dict[str, Any], name: str, *, needed: bool = True) -> tuple[str, ...]:
    """A list of texts. An empty one would mean "any", so it must be left out to mean that."""
    if name not in document and not needed:
        return ()
    value = document.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise InvalidArgumentError(f"'{name}' in the license is not a list of texts")
    return tuple(value)


def _text(document: dict[str, Any], name: str) -> str:
    value = document.get(name, "")
    if not isinstance(value, str) or (name in document and not value):
        raise InvalidArgumentError(f"'{name}' in the license is not a text")
    return value


def _to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _from_base64(text: object) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True) if isinstance(text, str) else None
    except (binascii.Error, ValueError):
        return None
