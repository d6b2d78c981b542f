"""New recipients for an old payload."""

from pathlib import Path

import pytest
from repoagent_decrypt.age.files import decrypt_file, encrypt_file
from repoagent_decrypt.age.primitives.errors import HeaderError, NoMatchError
from repoagent_decrypt.age.rewrap import rewrap_file
from repoagent_decrypt.age.stanzas.hybrid import HybridIdentity
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_decrypt.age.stream import CHUNK


def test_the_new_recipients_can_open_the_file_and_the_old_ones_cannot(
    identity: X25519Identity, plain: bytes, tmp_path: Path
) -> None:
    (tmp_path / "plain").write_bytes(plain)
    encrypt_file(tmp_path / "plain", tmp_path / "old", [identity.recipient])
    new: list[X25519Identity | HybridIdentity] = [X25519Identity.generate(), HybridIdentity.generate()]
    sizes = rewrap_file(tmp_path / "old", tmp_path / "new", [identity], [each.recipient for each in new])
    assert sizes.written == (tmp_path / "new").stat().st_size
    assert (tmp_path / "new").read_bytes()[-3 * CHUNK :] == (tmp_path / "old").read_bytes()[-3 * CHUNK :]
    for number, each in enumerate(new):
        decrypt_file(tmp_path / "new", tmp_path / f"opened{number}", [each])
        assert (tmp_path / f"opened{number}").read_bytes() == plain
    with pytest.raises(NoMatchError):
        decrypt_file(tmp_path / "new", tmp_path / "no", [identity])


def test_strangers_and_armored_files_are_refused(identity: X25519Identity, tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"x")
    encrypt_file(tmp_path / "plain", tmp_path / "old", [identity.recipient])
    encrypt_file(tmp_path / "plain", tmp_path / "armored", [identity.recipient], armored=True)
    with pytest.raises(NoMatchError):
        rewrap_file(tmp_path / "old", tmp_path / "new", [X25519Identity.generate()], [identity.recipient])
    with pytest.raises(HeaderError, match="armored"):
        rewrap_file(tmp_path / "armored", tmp_path / "new", [identity], [identity.recipient])
    assert not (tmp_path / "new").exists()
