"""ssh keys through ``pyrage``, and the message where it is missing."""

import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from repoagent_decrypt.age.files import decrypt_file
from repoagent_decrypt.age.keys import Identities, Recipients, parse_identities, parse_recipients
from repoagent_decrypt.age.pyrage_keys import decrypt_file_foreign, encrypt_file_foreign
from repoagent_decrypt.age.stanzas.scrypt import ScryptRecipient
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_decrypt.files.errors import AgeError, InvalidKeyError, MissingExtraError, NoMatchError

Pair = tuple[Identities, Recipients]


def ssh_pair(kind: str) -> Pair:
    key = Ed25519PrivateKey.generate() if kind == "ed25519" else generate_private_key(65537, 2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return parse_identities(private, "id"), parse_recipients(public, "id.pub")


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "plain"
    path.write_bytes(b"weights" * 30_000)
    return path


@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
def test_ssh_keys_encrypt_and_decrypt(kind: str, plain: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyrage")
    identities, recipients = ssh_pair(kind)
    encrypt_file_foreign(plain, tmp_path / "sealed", recipients)
    sizes = decrypt_file_foreign(tmp_path / "sealed", tmp_path / "opened", identities)
    assert (tmp_path / "opened").read_bytes() == plain.read_bytes()
    assert sizes.written == plain.stat().st_size
    with pytest.raises(NoMatchError):
        decrypt_file_foreign(tmp_path / "sealed", tmp_path / "no", ssh_pair(kind)[0])
    assert not (tmp_path / "no").exists()


def test_age_keys_mix_with_ssh_keys_but_passphrases_do_not(
    plain: Path, tmp_path: Path, identity: X25519Identity
) -> None:
    pytest.importorskip("pyrage")
    recipients = ssh_pair("ed25519")[1]
    encrypt_file_foreign(plain, tmp_path / "sealed", Recipients((identity.recipient,)) + recipients)
    decrypt_file(tmp_path / "sealed", tmp_path / "opened", [identity])
    assert (tmp_path / "opened").read_bytes() == plain.read_bytes()
    with pytest.raises(InvalidKeyError, match="mixed"):
        encrypt_file_foreign(plain, tmp_path / "no", Recipients((ScryptRecipient(b"x"),)) + recipients)


def test_damage_and_broken_headers_are_refused_and_leave_nothing(plain: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyrage")
    identities, recipients = ssh_pair("ed25519")
    encrypt_file_foreign(plain, tmp_path / "sealed", recipients)
    whole = (tmp_path / "sealed").read_bytes()
    for damaged in (whole[:-1], whole[:100], whole[:-5] + b"xxxxx", b"hello", whole[:70_000]):
        (tmp_path / "bad").write_bytes(damaged)
        with pytest.raises(AgeError):
            decrypt_file_foreign(tmp_path / "bad", tmp_path / "no", identities)
        assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("text", [b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n",
                                  b"AGE-PLUGIN-NOWHERE-1QQQQQQQQ\n"])  # fmt: skip
def test_unusable_foreign_identities_are_refused_without_showing_them(text: bytes, plain: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyrage")
    with pytest.raises(InvalidKeyError) as error:
        decrypt_file_foreign(plain, tmp_path / "no", parse_identities(text, "the key"))
    assert "AAAA" not in str(error.value)


def test_without_pyrage_the_message_names_the_extra(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyrage", None)
    identities, recipients = ssh_pair("ed25519")
    with pytest.raises(MissingExtraError, match=r"pip install '\./agents/decrypt\[pyrage\]'"):
        decrypt_file_foreign(plain, tmp_path / "no", identities)
    with pytest.raises(MissingExtraError, match="pyrage"):
        encrypt_file_foreign(plain, tmp_path / "no", recipients)
