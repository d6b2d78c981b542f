"""Signatures made by releases of the reference tool (vectors/make_vectors.py)."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from repoagent_verify.bundle import read_bundle
from repoagent_verify.manifest import Serialization, VerificationError
from repoagent_verify.signing import Identity, sign
from repoagent_verify.trust_roots import Trust, read_trust
from repoagent_verify.verification import Coverage, verify

from agents.verify.tests.issuing import public_pem
from repoagent.api.envelopes import key_id

VECTORS = Path(__file__).parent / "vectors"
SIGNATURES = sorted(VECTORS.glob("*.sig"))


@pytest.fixture(scope="module")
def trust() -> Trust:
    return read_trust([(name, (VECTORS / name).read_bytes()) for name in ("key.pub", "ca.pem")])


def test_there_are_signatures_of_four_releases() -> None:
    assert {path.name.split("-")[0] for path in SIGNATURES} == {"0.2.0", "0.3.1", "1.0.1", "1.1.1"}


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda path: path.stem)
def test_what_the_reference_tool_signed_holds(signature: Path, trust: Trust) -> None:
    verified = verify(VECTORS / "model", signature.read_bytes(), trust, Coverage(""))
    assert (verified.files, verified.bytes_read) == (3, 1051)
    assert verified.signer.method == ("certificate" if "certificate" in signature.stem else "key")


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda path: path.stem)
@pytest.mark.parametrize("change", ["flip", "append", "remove", "add", "rename", "link", "empty"])
def test_a_changed_model_is_refused(signature: Path, trust: Trust, change: str, tmp_path: Path) -> None:
    root = tmp_path / "model"
    shutil.copytree(VECTORS / "model", root)
    file = root / "1" / "model.onnx"
    match change:
        case "flip":
            file.write_bytes(b"\x01" + file.read_bytes()[1:])
        case "append":
            file.write_bytes(file.read_bytes() + b"\0")
        case "remove":
            file.unlink()
        case "add":
            (root / "1" / "model.py").write_bytes(b"import os")
        case "rename":
            file.rename(root / "1" / "other.onnx")
        case "link":
            file.rename(tmp_path / "outside")
            file.symlink_to(tmp_path / "outside")
        case "empty":
            file.write_bytes(b"")
    with pytest.raises(VerificationError):
        verify(root, signature.read_bytes(), trust, Coverage("", strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda path: path.stem)
def test_every_changed_bit_of_a_signature_is_refused_or_means_nothing(signature: Path, trust: Trust) -> None:
    data = signature.read_bytes()
    original = read_bundle(data)
    for place in range(0, len(data), 7):
        changed = bytearray(data)
        changed[place] ^= 1 << (place % 7)
        try:
            verify(VECTORS / "model", bytes(changed), trust, Coverage(""))
        except VerificationError:
            continue
        # What is left are members that nothing reads, and a copy of the root, which the operator's stands in for.
        accepted = read_bundle(bytes(changed))
        assert (accepted.payload, accepted.signature) == (original.payload, original.signature)
        assert accepted.certificates[:1] == original.certificates[:1]


# Signatures of another implementation, in Go: vectors of the specification's conformance suite.
#
# Source: ``conformance/test/test-cases/verify/positive`` of the specification of OpenSSF Model Signing (Apache-2.0).
# The suite's root is not among its stored files, so the authority in between, which signed the signer's certificate, is
# the trusted one here.

RECORDED = Path(__file__).parent / "vectors" / "go"


@pytest.fixture
def simple(tmp_path: Path) -> Path:
    for name, content in (("signme-1", b"signme-1\n"), ("signme-2", b"signme-2"), ("ignore-me", b"")):
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.fixture(scope="module")
def chain() -> list[x509.Certificate]:
    bundle = read_bundle((RECORDED / "go-certificate.sig").read_bytes())
    return [x509.load_der_x509_certificate(der) for der in bundle.certificates]


def test_a_key_signature_holds(simple: Path, chain: list[x509.Certificate]) -> None:
    key = chain[0].public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    document = (RECORDED / "go-key.sig").read_bytes()
    assert key_id(key) == json.loads(document)["verificationMaterial"]["publicKey"]["hint"]
    verified = verify(simple, document, Trust((key,)), Coverage("", ("ignore-me",)))
    assert (verified.files, verified.signer.method) == (2, "key")
    with pytest.raises(VerificationError, match="not signed: ignore-me"):
        verify(simple, document, Trust((key,)), Coverage(""))


def test_a_certificate_signature_holds(simple: Path, chain: list[x509.Certificate]) -> None:
    document = (RECORDED / "go-certificate.sig").read_bytes()
    verified = verify(simple, document, Trust(certificates=(chain[1],)), Coverage("", ("ignore-me",)))
    assert (verified.files, verified.signer.name) == (2, "CN=intermediate-ca")
    (simple / "signme-1").write_bytes(b"signme-1")
    with pytest.raises(VerificationError, match="changed after signing: signme-1"):
        verify(simple, document, Trust(certificates=(chain[1],)), Coverage("", ("ignore-me",)))


# Memory while a model is verified does not depend on its size.

CHILD = """
import sys
from pathlib import Path
from repoagent_verify.trust_roots import read_trust
from repoagent_verify.verification import Coverage, verify
root, signature, key = map(Path, sys.argv[1:])
verify(root, signature.read_bytes(), read_trust([("key", key.read_bytes())]), Coverage(""))
# Not ru_maxrss: a child begins with that of its parent.
print(next(line.split()[1] for line in Path("/proc/self/status").open() if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.parametrize("shard_size", [None, 8 << 20], ids=["whole", "ranges"])
def test_memory_does_not_grow_with_the_file(
    tmp_path: Path, key: ec.EllipticCurvePrivateKey, shard_size: int | None
) -> None:
    peaks = []
    (tmp_path / "key.pem").write_bytes(public_pem(key))
    for size in (16 << 20, 512 << 20):
        root = tmp_path / str(size)
        root.mkdir()
        with (root / "weights").open("wb") as weights:
            weights.truncate(size)
        (tmp_path / "model.sig").write_bytes(sign(root, Identity(key), Serialization(shard_size=shard_size)))
        arguments = [str(root), str(tmp_path / "model.sig"), str(tmp_path / "key.pem")]
        done = subprocess.run([sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout) << 10)
    assert peaks[1] - peaks[0] < 16 << 20
