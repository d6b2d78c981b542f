"""Chains of certificates: those of the specification's conformance suite, and revocation."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID
from repoagent_verify.manifest import Serialization, VerificationError
from repoagent_verify.signing import read_identity, sign
from repoagent_verify.trust_roots import Trust
from repoagent_verify.verification import Coverage, Verified, verify

from agents.verify.tests.issuing import NOW, Issued, issue

PAST, FUTURE = (-20, -10), (5, 10)


def check(model: Path, leaf: Issued, between: list[Issued], trust: Trust) -> Verified:
    identity = read_identity(leaf.key_pem, None, [leaf.pem, *(item.pem for item in between)])
    return verify(model, sign(model, identity, Serialization()), trust, Coverage(""))


def trusted(*roots: Issued) -> Trust:
    return Trust(certificates=tuple(root.certificate for root in roots))


@pytest.fixture
def root() -> Issued:
    return issue("root", authority=True)


@pytest.fixture
def middle(root: Issued) -> Issued:
    return issue("middle", root, authority=True)


def test_a_chain_through_another_authority_holds(model: Path, root: Issued, middle: Issued) -> None:
    verified = check(model, issue("leaf", middle), [middle], trusted(root))
    assert verified.signer.name == "CN=leaf"
    assert verified.signer.trust_root == root.certificate.fingerprint(hashes.SHA256()).hex()


def test_an_authority_for_servers_makes_no_signers(model: Path, root: Issued) -> None:
    for_servers = issue("tls", root, authority=True, authority_usage=ExtendedKeyUsageOID.SERVER_AUTH)
    with pytest.raises(VerificationError, match=r"'CN=tls' is not for signers of code \(extended key usage\)"):
        check(model, issue("leaf", for_servers), [for_servers], trusted(root))


def test_an_authority_that_may_not_sign_certificates_makes_no_signers(model: Path, root: Issued) -> None:
    middle = issue("middle", root, authority=True, certificates=False)
    with pytest.raises(VerificationError, match=r"'CN=middle' is not for signing certificates \(key usage\)"):
        check(model, issue("leaf", middle), [middle], trusted(root))


@pytest.mark.parametrize("usage", [ExtendedKeyUsageOID.CODE_SIGNING, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE])
def test_an_authority_for_signers_makes_some(model: Path, root: Issued, usage: x509.ObjectIdentifier) -> None:
    middle = issue("middle", root, authority=True, authority_usage=usage)
    assert check(model, issue("leaf", middle), [middle], trusted(root)).signer.name == "CN=leaf"


def test_a_chain_without_its_middle_is_refused(model: Path, root: Issued, middle: Issued) -> None:
    with pytest.raises(VerificationError, match="does not lead to a trusted one"):
        check(model, issue("leaf", middle), [], trusted(root))


def test_another_authority_of_the_same_name_is_refused(model: Path, root: Issued, middle: Issued) -> None:
    with pytest.raises(VerificationError, match="does not lead to a trusted one"):
        check(model, issue("leaf", middle), [middle], trusted(issue("root", authority=True)))


def test_a_root_that_the_signature_brings_along_is_not_trusted(model: Path) -> None:
    own = issue("own root", authority=True)
    with pytest.raises(VerificationError, match="does not lead to a trusted one"):
        check(model, issue("leaf", own), [own], trusted(issue("root", authority=True)))


@pytest.mark.parametrize(
    ("days", "text"), [(PAST, "expired at"), (FUTURE, "is not valid before")], ids=["expired", "not yet"]
)
def test_a_signer_out_of_its_time_is_refused(model: Path, root: Issued, days: tuple[int, int], text: str) -> None:
    with pytest.raises(VerificationError, match=text):
        check(model, issue("leaf", root, days=days), [], trusted(root))


@pytest.mark.parametrize("days", [PAST, FUTURE], ids=["expired", "not yet"])
def test_an_authority_out_of_its_time_is_refused(model: Path, root: Issued, days: tuple[int, int]) -> None:
    middle = issue("middle", root, authority=True, days=days)
    with pytest.raises(VerificationError, match="does not lead to a trusted one"):
        check(model, issue("leaf", middle), [middle], trusted(root))


def test_an_expired_root_is_refused(model: Path) -> None:
    root = issue("root", authority=True, days=PAST)
    with pytest.raises(VerificationError, match="does not lead to a trusted one"):
        check(model, issue("leaf", root), [], trusted(root))


def test_the_moment_can_be_given(model: Path) -> None:
    root = issue("root", authority=True, days=PAST)
    leaf = issue("leaf", root, days=PAST)
    assert check(model, leaf, [], replace(trusted(root), at=NOW - timedelta(15))).files == 3


@pytest.mark.parametrize("usage", [None, ExtendedKeyUsageOID.SERVER_AUTH])
def test_a_certificate_that_is_not_for_code_is_refused(
    model: Path, root: Issued, usage: x509.ObjectIdentifier | None
) -> None:
    with pytest.raises(VerificationError, match="extended key usage"):
        check(model, issue("leaf", root, usage=usage), [], trusted(root))


def test_a_certificate_that_is_not_for_signatures_is_refused(model: Path, root: Issued) -> None:
    with pytest.raises(VerificationError, match="key usage"):
        check(model, issue("leaf", root, signatures=False), [], trusted(root))


def test_a_signer_cannot_be_an_authority(model: Path, root: Issued) -> None:
    outer = issue("outer", root)
    with pytest.raises(VerificationError, match="does not lead to a trusted one"):
        check(model, issue("leaf", outer), [outer], trusted(root))


def test_the_subject_can_be_demanded(model: Path, root: Issued) -> None:
    assert check(model, issue("leaf", root), [], replace(trusted(root), subject="CN=leaf")).files == 3
    with pytest.raises(VerificationError, match="signed by 'CN=other', expected 'CN=leaf'"):
        check(model, issue("other", root), [], replace(trusted(root), subject="CN=leaf"))


def revoke(issuer: Issued, *revoked: Issued, days: tuple[int, int] = (-1, 5)) -> x509.CertificateRevocationList:
    builder = x509.CertificateRevocationListBuilder().issuer_name(issuer.certificate.subject)
    builder = builder.last_update(NOW + timedelta(days[0])).next_update(NOW + timedelta(days[1]))
    for item in revoked:
        entry = x509.RevokedCertificateBuilder().serial_number(item.certificate.serial_number)
        builder = builder.add_revoked_certificate(entry.revocation_date(NOW).build())
    return builder.sign(issuer.key, hashes.SHA256())


def test_a_revoked_signer_is_refused(model: Path, root: Issued) -> None:
    leaf, other = issue("leaf", root), issue("other", root)
    trust = replace(trusted(root), revocations=(revoke(root, leaf),))
    assert check(model, other, [], trust).files == 3
    with pytest.raises(VerificationError, match="'CN=leaf' was revoked by 'CN=root'"):
        check(model, leaf, [], trust)


def test_a_revoked_authority_is_refused(model: Path, root: Issued, middle: Issued) -> None:
    trust = replace(trusted(root), revocations=(revoke(root, middle),))
    with pytest.raises(VerificationError, match="'CN=middle' was revoked"):
        check(model, issue("leaf", middle), [middle], trust)


def test_a_revocation_list_that_is_forged_or_old_is_refused(model: Path, root: Issued) -> None:
    leaf = issue("leaf", root)
    forged = replace(root, key=issue("x").key)
    with pytest.raises(VerificationError, match="not signed by it"):
        check(model, leaf, [], replace(trusted(root), revocations=(revoke(forged),)))
    with pytest.raises(VerificationError, match="revocation list of 'CN=root' expired"):
        check(model, leaf, [], replace(trusted(root), revocations=(revoke(root, days=(-9, -8)),)))


def test_a_key_of_the_chain_does_not_vouch_by_itself(model: Path, root: Issued) -> None:
    """A bundle that is signed with a key is refused where only certificates are trusted, and the other way round."""
    leaf = issue("leaf", root)
    by_key = sign(model, read_identity(leaf.key_pem, None), Serialization())
    with pytest.raises(VerificationError, match="no public key is trusted"):
        verify(model, by_key, trusted(root), Coverage(""))
    with pytest.raises(VerificationError, match="no certificate is trusted"):
        check(model, leaf, [], Trust((leaf.key.public_key(),)))


def test_a_certificate_of_thousands_of_names_is_refused_before_it_is_parsed(model: Path, root: Issued) -> None:
    """The parser makes an object of each name, with the interpreter's lock held: all threads of the server wait."""
    names = x509.SubjectAlternativeName([x509.DNSName("a.example")] * 10_000)
    leaf = issue("leaf", root, extensions=[(names, False)])
    with pytest.raises(VerificationError, match=r"a certificate of 11\d{4} bytes, expected at most 65536"):
        check(model, leaf, [], trusted(root))


def test_authorities_that_sign_each_other_end_the_search(model: Path, root: Issued) -> None:
    """Each of them could stand above each other one: the paths to try are more than a billion."""
    one = issue("A", authority=True)
    same_name = [replace(one, certificate=again(one, number)) for number in range(14)]
    with pytest.raises(VerificationError, match="Exceeded maximum signature check limit"):
        check(model, issue("leaf", one), same_name, trusted(root))


def again(issued: Issued, number: int) -> x509.Certificate:
    """Another certificate for the same name and key, by itself."""
    old = issued.certificate
    builder = x509.CertificateBuilder().subject_name(old.subject).issuer_name(old.subject)
    builder = builder.public_key(issued.key.public_key()).serial_number(number + 1)
    builder = builder.not_valid_before(old.not_valid_before_utc).not_valid_after(old.not_valid_after_utc)
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    return builder.sign(issued.key, hashes.SHA256())
