"""Whether a bundle's signature leads to what the operator trusts: a key, or a chain of certificates.

Source: the OpenSSF Model Signing specification, sections 4.1, 8.2 and 11, its registry of algorithms, and RFC 5280.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import (
    Criticality,
    ExtensionPolicy,
    Policy,
    PolicyBuilder,
    Store,
)
from cryptography.x509.verification import (
    VerificationError as ChainError,
)

from repoagent.api.envelopes import HASHES, key_id, pre_authentication_encoding
from repoagent_verify.bundle import Bundle, Method, pre_authentication_encoding_of_0_2
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
    leaf, root = _verified_signer(bundle.certificates, trust)
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


def _verified_signer(chain: Sequence[bytes], trust: Trust) -> tuple[x509.Certificate, x509.Certificate]:
    """The signer's certificate and the trusted one that it leads to. No certificate of the chain is revoked.

    Args:
        chain: DER, the signer's first, then others in any order.
        trust: The authorities, the revocation lists, the moment, and the signer's subject.

    Raises:
        VerificationError: the chain does not hold at that moment, or the certificate is not for signing code.
    """
    leaf, *others = (_parsed(der) for der in chain)
    moment = trust.at or datetime.now(UTC)
    _check_validity(leaf, moment)
    _check_usage(leaf)
    verified = _verified_chain(leaf, others, trust, moment)
    _check_revocations(verified, trust, moment)
    subject = leaf.subject.rfc4514_string()
    if trust.subject is not None and subject != trust.subject:
        raise VerificationError(f"the model is signed by '{subject}', expected '{trust.subject}'")
    return leaf, verified[-1]


def _parsed(der: bytes) -> x509.Certificate:
    try:
        certificate = x509.load_der_x509_certificate(der)
        # These are parsed when they are first asked for: a damaged certificate shows itself here, not later.
        for part in (certificate.subject, certificate.issuer):
            part.rfc4514_string()
        _ = certificate.extensions, certificate.public_key(), certificate.signature_hash_algorithm
        _ = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension) as error:
        raise VerificationError(f"the signature has a certificate that cannot be read: {error}") from None
    return certificate


def _check_validity(certificate: x509.Certificate, moment: datetime) -> None:
    """A clear message for the signer's own certificate; those above it are checked with the chain."""
    subject = certificate.subject.rfc4514_string()
    if moment > certificate.not_valid_after_utc:
        raise VerificationError(f"the certificate '{subject}' expired at {certificate.not_valid_after_utc.isoformat()}")
    if moment < certificate.not_valid_before_utc:
        begin = certificate.not_valid_before_utc.isoformat()
        raise VerificationError(f"the certificate '{subject}' is not valid before {begin}")


def _check_usage(leaf: x509.Certificate) -> None:
    try:
        usages = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        if ExtendedKeyUsageOID.CODE_SIGNING not in usages:
            raise VerificationError("the signer's certificate is not for signing code (extended key usage)")
    except x509.ExtensionNotFound:
        raise VerificationError("the signer's certificate has no extended key usage; expected code signing") from None
    except (ValueError, x509.DuplicateExtension) as error:
        raise VerificationError(f"the signer's certificate cannot be read: {error}") from None
    try:
        usage = leaf.extensions.get_extension_for_class(x509.KeyUsage).value
    except x509.ExtensionNotFound:
        return
    if not usage.digital_signature:
        raise VerificationError("the signer's certificate is not for signatures (key usage)")


def _verified_chain(
    leaf: x509.Certificate, others: Sequence[x509.Certificate], trust: Trust, moment: datetime
) -> list[x509.Certificate]:
    # The rules of the web (names of hosts) do not fit signers of models; those of RFC 5280 for authorities do.
    authorities = ExtensionPolicy.permit_all().require_present(
        x509.BasicConstraints, Criticality.AGNOSTIC, _is_an_authority
    )
    authorities = authorities.may_be_present(x509.KeyUsage, Criticality.AGNOSTIC, _signs_certificates)
    authorities = authorities.may_be_present(x509.ExtendedKeyUsage, Criticality.AGNOSTIC, _is_for_signers)
    authorities = authorities.may_be_present(x509.NameConstraints, Criticality.AGNOSTIC, _is_for_any_name)
    builder = PolicyBuilder().store(Store(list(trust.certificates))).time(moment)
    builder = builder.extension_policies(ca_policy=authorities, ee_policy=ExtensionPolicy.permit_all())
    try:
        return list(builder.build_client_verifier().verify(leaf, list(others)).chain)
    except (ChainError, ValueError) as error:
        raise VerificationError(f"the signer's certificate does not lead to a trusted one: {error}") from None


def _is_an_authority(_policy: Policy, certificate: x509.Certificate, extension: x509.BasicConstraints) -> None:
    if not extension.ca:
        raise ValueError(f"'{certificate.subject.rfc4514_string()}' is not an authority")


def _signs_certificates(_policy: Policy, certificate: x509.Certificate, extension: x509.KeyUsage | None) -> None:
    if extension is not None and not extension.key_cert_sign:
        raise ValueError(f"'{certificate.subject.rfc4514_string()}' is not for signing certificates (key usage)")


def _is_for_signers(_policy: Policy, certificate: x509.Certificate, extension: x509.ExtendedKeyUsage | None) -> None:
    """An authority that a larger one limits to servers or to mail makes no signers of models."""
    allowed = (ExtendedKeyUsageOID.CODE_SIGNING, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE)
    if extension is not None and not any(usage in extension for usage in allowed):
        raise ValueError(f"'{certificate.subject.rfc4514_string()}' is not for signers of code (extended key usage)")


def _is_for_any_name(_policy: Policy, certificate: x509.Certificate, extension: x509.NameConstraints | None) -> None:
    """The library compares names of hosts with the limits of an authority, and not those of signers."""
    if extension is None:
        return
    trees = [*(extension.permitted_subtrees or ()), *(extension.excluded_subtrees or ())]
    if any(isinstance(tree, x509.DirectoryName) for tree in trees):
        raise ValueError(
            f"'{certificate.subject.rfc4514_string()}' is limited to signers of certain names, which is not supported"
        )


def _check_revocations(chain: Sequence[x509.Certificate], trust: Trust, moment: datetime) -> None:
    for certificate, issuer in pairwise(chain):
        for revocations in trust.revocations:
            if revocations.issuer == issuer.subject:
                _check_revocation(certificate, issuer, revocations, moment)


def _check_revocation(
    certificate: x509.Certificate,
    issuer: x509.Certificate,
    revocations: x509.CertificateRevocationList,
    moment: datetime,
) -> None:
    name = issuer.subject.rfc4514_string()
    try:
        signed = revocations.is_signature_valid(issuer.public_key())  # type: ignore[arg-type]
    except (InvalidSignature, TypeError, UnsupportedAlgorithm):
        signed = False
    if not signed:
        raise VerificationError(f"the revocation list of '{name}' is not signed by it")
    if revocations.next_update_utc is not None and revocations.next_update_utc < moment:
        raise VerificationError(f"the revocation list of '{name}' expired at {revocations.next_update_utc.isoformat()}")
    if revocations.get_revoked_certificate_by_serial_number(certificate.serial_number) is not None:
        raise VerificationError(f"the certificate '{certificate.subject.rfc4514_string()}' was revoked by '{name}'")
