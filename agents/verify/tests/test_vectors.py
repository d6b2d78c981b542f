"""Signatures made by releases of the reference tool (vectors/make_vectors.py)."""

import shutil
from pathlib import Path

import pytest
from repoagent_verify.bundle import read_bundle
from repoagent_verify.manifest import VerificationError
from repoagent_verify.trust_roots import Trust, read_trust
from repoagent_verify.verification import Coverage, verify

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
