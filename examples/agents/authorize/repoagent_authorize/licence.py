"""Signed licences: which models, from when, until when.

A licence file is a DSSE envelope (<https://github.com/secure-systems-lab/dsse>): the licence as base64, and an Ed25519
signature over its type and its bytes, so nothing has to be brought into a canonical form::

    {"payloadType": "application/vnd.repoagent.licence+json", "payload": BASE64, "signatures": [{"sig": BASE64}]}

The payload is ``{"models": ["fraud-*"], "not_before": "2027-01-01T00:00:00Z", "expires": "2028-01-01T00:00:00Z"}``.
"""

import base64
import binascii
import json
from collections.abc import Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from repoagent.api import InvalidArgumentError
from repoagent_authorize.grant import Grant, parse_time

__all__ = ["LARGEST", "PAYLOAD_TYPE", "check_licence", "issue_licence", "read_public_key"]

PAYLOAD_TYPE: Final = "application/vnd.repoagent.licence+json"
LARGEST: Final = 1 << 16
"""Bytes of a licence file; more is not read."""


def read_public_key(pem: bytes) -> Ed25519PublicKey:
    """Read a PEM file, as ``openssl pkey -pubout`` writes it.

    Raises:
        InvalidArgumentError: it is none, or of another kind of key.
    """
    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidArgumentError("the public key is no Ed25519 key in PEM form")
    return key


def check_licence(content: bytes, key: Ed25519PublicKey, model: str, moment: datetime) -> Grant:
    """What the licence file allows for ``model`` at ``moment``.

    Raises:
        InvalidArgumentError: it is no licence, not signed with ``key``, for other models, or not valid at that time.
    """
    licence = _json(_verified_payload(content, key), "the licence")
    models, start, end = licence.get("models"), licence.get("not_before"), licence.get("expires")
    if not isinstance(models, list) or not any(isinstance(one, str) and fnmatchcase(model, one) for one in models):
        raise InvalidArgumentError(f"the licence is not for the model '{model}'")
    if moment < (begin := parse_time(start, "'not_before' in the licence")):
        raise InvalidArgumentError(f"the licence begins only at {begin.isoformat()}")
    return Grant("the licence", parse_time(end, "'expires' in the licence"))


def issue_licence(key: Ed25519PrivateKey, models: Sequence[str], *, not_before: datetime, expires: datetime) -> bytes:
    """The content of a licence file, for those who have the private key. The times need a time zone."""
    terms = {"models": list(models), "not_before": not_before.isoformat(), "expires": expires.isoformat()}
    payload = json.dumps(terms).encode()
    signature = key.sign(_signed_bytes(PAYLOAD_TYPE, payload))
    envelope = {"payloadType": PAYLOAD_TYPE, "payload": _to_base64(payload)}
    return json.dumps({**envelope, "signatures": [{"sig": _to_base64(signature)}]}, indent=2).encode() + b"\n"


def _verified_payload(content: bytes, key: Ed25519PublicKey) -> bytes:
    envelope = _json(content, "the licence file")
    payload = _from_base64(envelope.get("payload"))
    signatures = envelope.get("signatures")
    if envelope.get("payloadType") != PAYLOAD_TYPE or payload is None or not isinstance(signatures, list):
        raise InvalidArgumentError(f"the licence file is no signed {PAYLOAD_TYPE}")
    message = _signed_bytes(PAYLOAD_TYPE, payload)
    if not any(_is_signed(message, signature, key) for signature in signatures):
        raise InvalidArgumentError("the licence file is not signed with the operator's key")
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
        value = json.loads(content)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"{what} is no JSON object")
    return value


def _to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _from_base64(text: object) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True) if isinstance(text, str) else None
    except binascii.Error:
        return None
