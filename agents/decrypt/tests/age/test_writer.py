"""The writer: chunks held back, aborts, and fresh keys each time."""

import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from repoagent_decrypt.age.files import decrypt_file, encrypt_file
from repoagent_decrypt.age.reader import AgeReader
from repoagent_decrypt.age.stanzas.hybrid import HybridIdentity
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_decrypt.age.stream import CHUNK, plain_shape, sealed_shape
from repoagent_decrypt.age.writer import AgeWriter, rewrap_file
from repoagent_decrypt.files.errors import AgeError, HeaderError, NoMatchError


@settings(max_examples=25)
@given(sizes=st.lists(st.integers(0, 3 * CHUNK), max_size=6))
def test_pieces_of_any_size_make_one_valid_file(sizes: list[int], identity: X25519Identity) -> None:
    target = io.BytesIO()
    with AgeWriter(target, [identity.recipient], threads=2) as writer:
        for number, size in enumerate(sizes):
            assert writer.write(bytes([number]) * size) == size
    with AgeReader(io.BytesIO(target.getvalue()), [identity]) as reader:
        assert reader.readall() == b"".join(bytes([number]) * size for number, size in enumerate(sizes))


def test_an_exception_leaves_a_file_that_nobody_accepts(identity: X25519Identity) -> None:
    target = io.BytesIO()

    def fail() -> None:
        with AgeWriter(target, [identity.recipient]) as writer:
            writer.write(bytes(40 * CHUNK))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with pytest.raises(AgeError), AgeReader(io.BytesIO(target.getvalue()), [identity]) as reader:
        reader.readall()


def test_the_same_plaintext_never_gives_the_same_file(identity: X25519Identity) -> None:
    files = set()
    for _ in range(3):
        target = io.BytesIO()
        with AgeWriter(target, [identity.recipient]) as writer:
            writer.write(b"same")
        files.add(target.getvalue())
    assert len({file[-20:] for file in files}) == 3


@given(st.integers(0, 1 << 45))
def test_sizes_can_be_computed_both_ways(size: int) -> None:
    shape = plain_shape(size)
    assert sealed_shape(shape.sealed) == shape
    assert shape.plain == size


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
