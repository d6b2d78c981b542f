"""What is signed is what is verified: files, ranges, algorithms, links, names."""

import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from repoagent_verify.manifest import Serialization, VerificationError
from repoagent_verify.signing import Identity, read_identity, sign
from repoagent_verify.trust_roots import Trust
from repoagent_verify.verification import Coverage, Verified, verify

from repoagent.api import CancelledError, InvalidArgumentError


def around(
    model: Path, how: Serialization, coverage: Coverage | None = None, curve: ec.EllipticCurve | None = None
) -> Verified:
    key = ec.generate_private_key(curve or ec.SECP256R1())
    bundle = sign(model, Identity(key), how)
    return verify(model, bundle, Trust((key.public_key(),)), coverage or Coverage(""))


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()], ids=lambda curve: curve.name)
@pytest.mark.parametrize("algorithm", ["sha256", "blake2b", "blake3"])
@pytest.mark.parametrize("size", [None, 1, 100, 10_000])
def test_a_signed_model_holds(model: Path, curve: ec.EllipticCurve, algorithm: str, size: int | None) -> None:
    verified = around(model, Serialization(algorithm, size), curve=curve)
    assert verified.bytes_read == 709
    # The empty file has no range, so a signature of ranges does not list it.
    assert verified.files == (3 if size is None else 2)


def test_names_of_any_letters_are_signed(model: Path) -> None:
    for name in ("模型.bin", "a b", "colon:1:2", "back\\slash", "line\nbreak"):
        (model / "1" / name).write_bytes(b"x")
    (model / "1" / "back\\slash").unlink()
    assert around(model, Serialization()).files == 7
    assert around(model, Serialization(shard_size=5)).files == 6


def test_a_name_that_is_not_text_cannot_be_signed(model: Path) -> None:
    Path(os.fsdecode(os.fsencode(model) + b"/\xff")).write_bytes(b"x")
    with pytest.raises(VerificationError, match="not valid UTF-8"):
        around(model, Serialization())


def test_git_files_at_the_root_are_left_out_and_deeper_ones_are_not(model: Path) -> None:
    (model / ".git").mkdir()
    (model / ".git" / "HEAD").write_bytes(b"x")
    (model / "1" / ".gitignore").write_bytes(b"x")
    assert around(model, Serialization()).files == 4
    with pytest.raises(VerificationError, match=r"not signed: \.git/HEAD"):
        around(model, Serialization(), Coverage("", strict=True))


def test_what_the_signer_left_out_is_refused_in_strict_mode(model: Path) -> None:
    how = Serialization(ignore_paths=("1/labels.txt",))
    assert around(model, how).files == 2
    with pytest.raises(VerificationError, match=r"not signed: 1/labels\.txt"):
        around(model, how, Coverage("", strict=True))
    assert around(model, how, Coverage("", ("1/labels.txt",), strict=True)).files == 2


def test_links_are_refused_unless_the_signer_followed_them(model: Path) -> None:
    (model / "1" / "link").symlink_to("model.onnx")
    with pytest.raises(VerificationError, match="1/link is a symbolic link"):
        around(model, Serialization())
    assert around(model, Serialization(allow_symlinks=True)).files == 4


@pytest.mark.parametrize("target", ["/etc/hostname", "../../m2", "..", "nowhere"])
def test_links_that_lead_elsewhere_are_refused(model: Path, target: str) -> None:
    (model.parent / "m2").mkdir()
    (model / "1" / "link").symlink_to(target)
    with pytest.raises(VerificationError, match="link that lea"):
        around(model, Serialization(allow_symlinks=True))


def test_a_special_file_is_refused(model: Path) -> None:
    os.mkfifo(model / "1" / "pipe")
    with pytest.raises(VerificationError, match="special file"):
        around(model, Serialization())


def test_a_model_without_files_cannot_be_signed(tmp_path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    with pytest.raises(InvalidArgumentError, match="no file to sign"):
        sign(tmp_path, Identity(key), Serialization())


def test_a_cancelled_load_stops_reading(model: Path, key: ec.EllipticCurvePrivateKey) -> None:
    bundle = sign(model, Identity(key), Serialization())
    with pytest.raises(CancelledError):
        verify(model, bundle, Trust((key.public_key(),)), Coverage(""), cancelled=lambda: True)


def test_progress_counts_bytes(model: Path, key: ec.EllipticCurvePrivateKey) -> None:
    seen: list[tuple[int, int]] = []
    bundle = sign(model, Identity(key), Serialization(shard_size=100))
    verify(model, bundle, Trust((key.public_key(),)), Coverage(""), progress=lambda *counts: seen.append(counts))
    assert seen[-1] == (709, 709)
    assert seen == sorted(seen)


def test_keys_of_other_kinds_cannot_sign() -> None:
    pem = rsa.generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with pytest.raises(InvalidArgumentError, match="expected P-256"):
        read_identity(pem, None)


def test_an_encrypted_key_needs_its_password(key: ec.EllipticCurvePrivateKey) -> None:
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    assert read_identity(pem, b"secret").key.private_numbers() == key.private_numbers()
    for password in (None, b"wrong"):
        with pytest.raises(InvalidArgumentError, match="cannot be read"):
            read_identity(pem, password)
