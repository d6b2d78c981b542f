"""An authority below a trusted one is limited by it: in depth, in names, and by what not everyone understands."""

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID, ObjectIdentifier
from repoagent_verify.manifest import Serialization, VerificationError
from repoagent_verify.signing import read_identity, sign
from repoagent_verify.trust_roots import read_trust
from repoagent_verify.verification import Coverage, verify

from agents.verify.tests.issuing import Issued, issue

UNKNOWN = x509.UnrecognizedExtension(ObjectIdentifier("1.3.6.1.4.1.99999.1"), b"\x05\x00")
OTHERS_ONLY = x509.NameConstraints(
    permitted_subtrees=[x509.DirectoryName(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "somebody else")]))],
    excluded_subtrees=None,
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "weights").write_bytes(b"weights")
    return tmp_path / "m"


def judge(model: Path, root: Issued, leaf: Issued, *between: Issued) -> str:
    """Verify what ``leaf`` signs; the name of the signer."""
    bundle = sign(model, read_identity(leaf.key_pem, None, [leaf.pem, *(one.pem for one in between)]), Serialization())
    return verify(model, bundle, read_trust([("root", root.pem)]), Coverage("")).signer.name


def test_an_authority_makes_no_authorities_beyond_its_depth(model: Path) -> None:
    root = issue("root", authority=True)
    middle = issue("middle", root, authority=True, path_length=0)
    assert judge(model, root, issue("signer", middle), middle) == "CN=signer"
    beyond = issue("beyond", middle, authority=True)
    with pytest.raises(VerificationError, match="does not lead to a trusted one"):
        judge(model, root, issue("signer", beyond), beyond, middle)


def test_a_trusted_authority_is_limited_in_depth_as_well(model: Path) -> None:
    root = issue("root", authority=True, path_length=0)
    middle = issue("middle", root, authority=True)
    with pytest.raises(VerificationError, match="does not lead to a trusted one"):
        judge(model, root, issue("signer", middle), middle)


@pytest.mark.parametrize("critical", [True, False])
def test_an_authority_for_other_names_makes_no_signer_of_this_name(model: Path, critical: bool) -> None:
    root = issue("root", authority=True)
    middle = issue("middle", root, authority=True, extensions=[(OTHERS_ONLY, critical)])
    with pytest.raises(VerificationError, match="does not lead to a trusted one"):
        judge(model, root, issue("signer", middle), middle)


@pytest.mark.parametrize("where", ["signer", "middle"])
def test_a_condition_that_is_not_understood_is_not_passed_over(model: Path, where: str) -> None:
    root = issue("root", authority=True)
    middle = issue("middle", root, authority=True, extensions=[(UNKNOWN, True)] if where == "middle" else [])
    leaf = issue("signer", middle, extensions=[(UNKNOWN, True)] if where == "signer" else [])
    with pytest.raises(VerificationError, match="does not lead to a trusted one"):
        judge(model, root, leaf, middle)
