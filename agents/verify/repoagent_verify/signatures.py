"""Whether a bundle's signature leads to what the operator trusts.

Source: the OpenSSF Model Signing specification, sections 4.1, 8.2 and 11, and its registry of algorithms.
"""

import hashlib
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from repoagent.api.envelopes import HASHES, key_id, pre_authentication_encoding
from repoagent_verify.bundle import Bundle, Method, pre_authentication_encoding_of_0_2
from repoagent_verify.certificates import verified_signer
from repoagent_verify.keyless import verify_keyless
from repoagent_verify.manifest import VerificationError
from repoagent_verify.statement import PREDICATE_TYPE_OF_0_2
from repoagent_verify.trust_roots import Trust


@dataclass(frozen=True, slots=True)
class Signer:
    """Who signed: the ``method``, ``name`` for people, and the ``trust_root`` that vouches for it."""

    method: str
    name: str
    trust_root: str


def verify_signature(bundle: Bundle, trust: Trust) -> Signer:
    """Check the signature of ``bundle``.

    Raises:
        VerificationError: no root in ``trust`` vouches for it.
    """
    if bundle.method is Method.KEY:
        return _by_key(bundle, trust)
    if bundle.method is Method.CERTIFICATE:
        return _by_certificate(bundle, trust)
    identity = verify_keyless(bundle.document, bundle.payload, trust)
    return Signer("sigstore", f"{identity} (issuer {trust.issuer})", hashlib.sha256(trust.sigstore or b"").hexdigest())


def _by_key(bundle: Bundle, trust: Trust) -> Signer:
    if not trust.keys:
        raise VerificationError("the model is signed with a key, and no public key is trusted here")
    known = {key_id(key): key for key in trust.keys}
    if bundle.key_hint and bundle.key_hint not in known:
        raise VerificationError(
            f"the model is signed with the key {bundle.key_hint}, which is not trusted; trusted: {', '.join(known)}"
        )
    candidates = {bundle.key_hint: known[bundle.key_hint]} if bundle.key_hint else known
    for fingerprint, key in candidates.items():
        if _fits(bundle, key):
            return Signer("key", f"key {fingerprint}", fingerprint)
    raise VerificationError("the signature does not fit the signed statement: one of them was changed")


def _by_certificate(bundle: Bundle, trust: Trust) -> Signer:
    if not trust.certificates:
        raise VerificationError("the model is signed with a certificate, and no certificate is trusted here")
    leaf, root = verified_signer(bundle.certificates, trust)
    key = leaf.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise VerificationError("the signer's certificate holds a key of another kind; expected P-256, P-384 or P-521")
    if not _fits(bundle, key):
        raise VerificationError("the signature does not fit the signed statement: one of them was changed")
    fingerprint = root.fingerprint(hashes.SHA256()).hex()
    return Signer("certificate", leaf.subject.rfc4514_string() or "(no subject)", fingerprint)


def _fits(bundle: Bundle, key: ec.EllipticCurvePublicKey) -> bool:
    digest = HASHES.get(key.curve.name)
    if digest is None:
        raise VerificationError(f"the curve {key.curve.name} is not allowed; expected P-256, P-384 or P-521")
    if _verifies(key, bundle.signature, pre_authentication_encoding(bundle.payload), digest):
        return True
    # Version 0.2 of the reference tool encoded the payload wrongly, and its certificates always used SHA-256.
    if PREDICATE_TYPE_OF_0_2.encode() not in bundle.payload:
        return False
    encoded = pre_authentication_encoding_of_0_2(bundle.payload)
    return any(_verifies(key, bundle.signature, encoded, algorithm) for algorithm in (digest, hashes.SHA256()))


def _verifies(
    key: ec.EllipticCurvePublicKey, signature: bytes, message: bytes, algorithm: hashes.HashAlgorithm
) -> bool:
    try:
        key.verify(signature, message, ec.ECDSA(algorithm))
    except InvalidSignature:
        return False
    return True
