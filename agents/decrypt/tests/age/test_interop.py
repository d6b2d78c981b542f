"""What others write we read, and what we write others read: ``pyrage`` and, where installed, the ``age`` program."""

import io
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from repoagent_decrypt.age.files import decrypt_file, encrypt_file
from repoagent_decrypt.age.reader import decrypt_stream
from repoagent_decrypt.age.stanzas import Identity, Recipient
from repoagent_decrypt.age.stanzas.scrypt import ScryptRecipient
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_decrypt.age.stream import BATCH_CHUNKS, CHUNK
from repoagent_decrypt.age.writer import encrypt_stream

pyrage = pytest.importorskip("pyrage")
SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, BATCH_CHUNKS * CHUNK + 77]
needs_age = pytest.mark.skipif(shutil.which("age") is None, reason="the program age is not installed")


def ours(plain: bytes, recipients: list[Recipient], *, armored: bool = False) -> bytes:
    target = io.BytesIO()
    encrypt_stream(io.BytesIO(plain), target, recipients, armored=armored)
    return target.getvalue()


def opened(sealed: bytes, identities: list[Identity]) -> bytes:
    target = io.BytesIO()
    decrypt_stream(io.BytesIO(sealed), target, identities)
    return target.getvalue()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("armored", [False, True])
def test_pyrage_and_we_read_each_other(size: int, armored: bool, identity: X25519Identity) -> None:
    plain = os.urandom(size)
    theirs = pyrage.x25519.Identity.from_str(identity.export())
    assert str(theirs.to_public()) == str(identity.recipient)
    assert pyrage.decrypt(ours(plain, [identity.recipient], armored=armored), [theirs]) == plain
    other = X25519Identity.generate()
    to = [pyrage.x25519.Recipient.from_str(str(each.recipient)) for each in (other, identity)]
    assert opened(pyrage.encrypt(plain, to, armored=armored), [identity]) == plain


def test_pyrage_reads_our_passphrase_files() -> None:
    # The other way takes pyrage seconds (it picks the work factor by time); the CCTV vectors have such files.
    sealed = ours(b"hello", [ScryptRecipient(b"correct horse", work_factor=10)])
    assert pyrage.passphrase.decrypt(sealed, "correct horse") == b"hello"


@needs_age
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("armored", [False, True])
def test_the_age_program_and_we_read_each_other(
    size: int, armored: bool, identity: X25519Identity, tmp_path: Path
) -> None:
    plain, sealed, keys, back = (tmp_path / name for name in ("plain", "sealed", "keys", "back"))
    plain.write_bytes(os.urandom(size))
    keys.write_text(identity.export() + "\n")
    encrypt_file(plain, sealed, [identity.recipient, X25519Identity.generate().recipient], armored=armored)
    subprocess.run(["age", "-d", "-i", keys, "-o", back, sealed], check=True)
    assert (back.read_bytes() if size else b"") == plain.read_bytes()
    theirs, again = tmp_path / "theirs", tmp_path / "again"
    command: list[str | Path] = [
        "age",
        "-r",
        str(identity.recipient),
        "-o",
        theirs,
        *(["-a"] if armored else []),
        plain,
    ]
    subprocess.run(command, check=True)
    decrypt_file(theirs, again, [identity])
    assert again.read_bytes() == plain.read_bytes()
