"""Whether a chain of certificates leads from a signer to a trusted authority, and none of it is revoked.

Source: RFC 5280, and the OpenSSF Model Signing specification, section 8.2.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
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

from repoagent_verify.manifest import VerificationError
from repoagent_verify.trust_roots import Trust


def verified_signer(chain: Sequence[bytes], trust: Trust) -> tuple[x509.Certificate, x509.Certificate]:
    """The signer's certificate and the trusted one that it leads to.

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
