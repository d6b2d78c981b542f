"""DSSE envelopes in Sigstore bundles, signed by a key.

Sources: DSSE 1.0.2 (envelope.md and protocol.md), and the Sigstore bundle format 0.3. The hint of the key and its
``keyid`` are SHA-256 of its PEM form, as in the bundles of OpenSSF Model Signing.
"""

import base64
import binascii
import hashlib
import json
from typing import Any, Final, Protocol

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from repoagent.errors import InvalidArgumentError
from repoagent.nested_text import read_json_object

PublicKey = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey


class MessageSigner(Protocol):
    """A private key of Ed25519, or what signs in its place with the key and the digest of its own."""

    def sign(self, data: bytes, /) -> bytes:
        """The signature of ``data``."""

    def public_key(self) -> PublicKey:
        """The public half."""


PrivateKey = ec.EllipticCurvePrivateKey | MessageSigner

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
_MEDIA_TYPE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
HASHES: Final[dict[str, hashes.HashAlgorithm]] = {
    "secp256r1": hashes.SHA256(),
    "secp384r1": hashes.SHA384(),
    "secp521r1": hashes.SHA512(),
}
"""The curves that may sign, and the digest that goes with each."""
MOST_VALUES: Final = 10_000
"""Of an envelope that no one vouched for yet: its payload is one text, in which no mark is counted."""
_MOST_SIGNATURES: Final = 16
_EXPECTED: Final = "expected a key on P-256, P-384 or P-521, or of Ed25519, in PEM or DER"


def read_private_key(data: bytes) -> PrivateKey:
    """A private key without a password, in PEM or DER: PKCS #8 or SEC 1, which is small enough for a TPM.

    Raises:
        InvalidArgumentError: it is none, or of another kind. Nothing of it is repeated.
    """
    load = serialization.load_pem_private_key if b"-----BEGIN" in data else serialization.load_der_private_key
    try:
        key = load(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InvalidArgumentError(f"the signing key cannot be read: {_EXPECTED}, without a password") from None
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key
    if isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name in HASHES:
        return key
    raise InvalidArgumentError(f"the signing key is of another kind: {_EXPECTED}")


def read_public_key(data: bytes) -> PublicKey:
    """A public key in PEM or DER.

    Raises:
        InvalidArgumentError: it is none, or of another kind.
    """
    load = serialization.load_pem_public_key if b"-----BEGIN" in data else serialization.load_der_public_key
    try:
        key = load(data)
    except (ValueError, UnsupportedAlgorithm):
        raise InvalidArgumentError(f"the public key cannot be read: {_EXPECTED}") from None
    if isinstance(key, ed25519.Ed25519PublicKey):
        return key
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in HASHES:
        return key
    raise InvalidArgumentError(f"the public key is of another kind: {_EXPECTED}")


def key_id(key: PublicKey) -> str:
    """What names ``key`` in an envelope."""
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(pem).hexdigest()


def sign(payload: bytes, key: PrivateKey) -> dict[str, Any]:
    """A bundle with ``payload``."""
    message = pre_authentication_encoding(payload)
    if isinstance(key, ec.EllipticCurvePrivateKey):
        signature = key.sign(message, ec.ECDSA(HASHES[key.curve.name]))
    else:
        signature = key.sign(message)
    name = key_id(key.public_key())
    return {
        "mediaType": _MEDIA_TYPE,
        "verificationMaterial": {"publicKey": {"hint": name}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{"keyid": name, "sig": base64.b64encode(signature).decode()}],
        },
    }


def verify(bundle: dict[str, Any], key: PublicKey) -> bytes:
    """The payload of ``bundle``, or of a bare envelope, that ``key`` signed.

    Raises:
        InvalidArgumentError: it did not, or this is no bundle with a statement.
    """
    envelope = bundle.get("dsseEnvelope", bundle)
    try:
        if envelope["payloadType"] != PAYLOAD_TYPE:
            raise InvalidArgumentError(f"the receipt has another payloadType than {PAYLOAD_TYPE}")
        if len(envelope["signatures"]) > _MOST_SIGNATURES:
            count = len(envelope["signatures"])
            raise InvalidArgumentError(f"the receipt has {count} signatures, expected at most {_MOST_SIGNATURES}")
        payload = base64.b64decode(envelope["payload"], validate=True)
        signatures = [base64.b64decode(one["sig"], validate=True) for one in envelope["signatures"]]
    except (KeyError, TypeError, binascii.Error, ValueError):
        raise InvalidArgumentError("the receipt is not a DSSE envelope, or a bundle with one") from None
    message = pre_authentication_encoding(payload)
    if not any(holds(signature, message, key) for signature in signatures):
        raise InvalidArgumentError("the receipt is not signed with this key, or was changed after it was signed")
    return payload


def holds(signature: bytes, message: bytes, key: PublicKey) -> bool:
    """Whether ``key`` signed ``message``."""
    try:
        if isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, message)
        else:
            key.verify(signature, message, ec.ECDSA(HASHES[key.curve.name]))
    except InvalidSignature:
        return False
    return True


def pre_authentication_encoding(payload: bytes) -> bytes:
    """The bytes that are signed: the type and the payload, each with its length in front."""
    return b"DSSEv1 %d %b %d %b" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def read_document(data: bytes, what: str, *, most_values: int = 0) -> dict[str, Any]:
    """The JSON object in ``data``; ``most_values`` limits what no one vouched for yet.

    Raises:
        InvalidArgumentError: it is none, or has more values; ``what`` names it.
    """
    try:
        return read_json_object(data, most_values=most_values)
    except ValueError as error:
        raise InvalidArgumentError(f"{what} is not valid JSON: {error}") from None


def to_json(document: object) -> bytes:
    """The bytes that are signed or sent."""
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
