"""Signatures of another implementation, in Go: vectors of the specification's conformance suite.

Source: ``conformance/test/test-cases/verify/positive`` of the specification of OpenSSF Model Signing (Apache-2.0). The
suite's root is not among its stored files, so the authority in between, which signed the signer's certificate, is the
trusted one here.
"""

import json
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from repoagent_verify.bundle import read_bundle
from repoagent_verify.manifest import VerificationError
from repoagent_verify.trust_roots import Trust, key_fingerprint
from repoagent_verify.verification import Coverage, verify

VECTORS = Path(__file__).parent / "vectors" / "go"


@pytest.fixture
def simple(tmp_path: Path) -> Path:
    for name, content in (("signme-1", b"signme-1\n"), ("signme-2", b"signme-2"), ("ignore-me", b"")):
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.fixture(scope="module")
def chain() -> list[x509.Certificate]:
    bundle = read_bundle((VECTORS / "go-certificate.sig").read_bytes())
    return [x509.load_der_x509_certificate(der) for der in bundle.certificates]


def test_a_key_signature_holds(simple: Path, chain: list[x509.Certificate]) -> None:
    key = chain[0].public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    document = (VECTORS / "go-key.sig").read_bytes()
    assert key_fingerprint(key) == json.loads(document)["verificationMaterial"]["publicKey"]["hint"]
    verified = verify(simple, document, Trust((key,)), Coverage("", ("ignore-me",)))
    assert (verified.files, verified.signer.method) == (2, "key")
    with pytest.raises(VerificationError, match="not signed: ignore-me"):
        verify(simple, document, Trust((key,)), Coverage(""))


def test_a_certificate_signature_holds(simple: Path, chain: list[x509.Certificate]) -> None:
    document = (VECTORS / "go-certificate.sig").read_bytes()
    verified = verify(simple, document, Trust(certificates=(chain[1],)), Coverage("", ("ignore-me",)))
    assert (verified.files, verified.signer.name) == (2, "CN=intermediate-ca")
    (simple / "signme-1").write_bytes(b"signme-1")
    with pytest.raises(VerificationError, match="changed after signing: signme-1"):
        verify(simple, document, Trust(certificates=(chain[1],)), Coverage("", ("ignore-me",)))
