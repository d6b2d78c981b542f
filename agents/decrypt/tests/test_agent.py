"""The agent with a model of its own; with the real loader it is in test_with_loader.py."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from repoagent_decrypt.age.stanzas.scrypt import ScryptRecipient
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_decrypt.age.stream import CHUNK
from repoagent_decrypt.agent import DecryptAgent

from repoagent.api import CancelledError, InvalidArgumentError, NotFoundError

Make = Callable[..., Path]
Fake = Callable[..., Any]
Read = Callable[[Path], dict[str, bytes]]
FILES = {
    "config.pbtxt": b'name: "m"',
    "1/model.onnx": os.urandom(3 * CHUNK + 5),
    "1/data/weights.bin": os.urandom(100),
    "2/model.onnx": b"",
}


@pytest.fixture
def model_dir(make_tree: Make, identity: X25519Identity, encrypt_in_place: Callable[..., None]) -> Path:
    root = make_tree(FILES)
    for name in ("1/model.onnx", "1/data/weights.bin", "2/model.onnx"):
        encrypt_in_place(root / name, identity.recipient, X25519Identity.generate().recipient)
    return root


def test_encrypted_files_are_decrypted_into_a_confidential_location_and_others_copied(
    model_dir: Path, fake_model: Fake, read_tree: Read
) -> None:
    model = fake_model(model_dir)
    before = read_tree(model_dir)
    DecryptAgent().load(model.as_model())
    assert read_tree(model.target) == FILES
    assert read_tree(model_dir) == before
    assert model.updated == [model.target]
    (confidential, hint), total = model.acquired[0], sum(map(len, FILES.values()))
    assert confidential
    assert hint is not None
    assert total <= hint <= total + 4096 * 10
    assert model.progressed[-1] == (total, total)
    assert model.reports[0]["bytes_written"] == total
    assert model.reports[0]["bytes_read"] == sum(map(len, before.values()))
    assert model.reports[0]["note"] == "3 decrypted, 1 copied"


def test_plaintext_is_readable_for_the_owner_only(model_dir: Path, fake_model: Fake) -> None:
    model = fake_model(model_dir)
    DecryptAgent().load(model.as_model())
    assert {path.stat().st_mode & 0o077 for path in model.target.rglob("*")} == {0}


def test_several_identities_passphrases_and_armor_may_be_mixed(
    make_tree: Make, fake_model: Fake, read_tree: Read, identity: X25519Identity, encrypt_in_place: Callable[..., None]
) -> None:
    root = make_tree({"1/a": b"aaa", "1/b": b"bbb", "1/c": b"ccc"})
    other = X25519Identity.generate()
    encrypt_in_place(root / "1/a", identity.recipient)
    encrypt_in_place(root / "1/b", other.recipient, armored=True)
    encrypt_in_place(root / "1/c", ScryptRecipient(b"correct horse", work_factor=2))
    model = fake_model(
        root,
        ("identity", "file:/key"),
        ("identity", "file:/other"),
        ("passphrase", "file:/word"),
        other=b"# a comment\n" + other.export().encode(),
        word=b"correct horse\n",
    )
    DecryptAgent().load(model.as_model())
    assert read_tree(model.target) == {"1/a": b"aaa", "1/b": b"bbb", "1/c": b"ccc"}


def test_only_the_files_asked_for_are_decrypted(
    make_tree: Make, fake_model: Fake, read_tree: Read, identity: X25519Identity, encrypt_in_place: Callable[..., None]
) -> None:
    root = make_tree({"1/model.onnx": b"x", "1/sample.age": b"not touched", "1/plain-name": b"y"})
    encrypt_in_place(root / "1/model.onnx", identity.recipient)
    encrypt_in_place(root / "1/plain-name", identity.recipient)
    (root / "1/plain-name.age").rename(root / "1/plain-name")
    model = fake_model(root, ("identity", "file:/key"), ("files", "1/model.*"), ("files", "plain-name"))
    DecryptAgent().load(model.as_model())
    assert read_tree(model.target) == {"1/model.onnx": b"x", "1/sample.age": b"not touched", "1/plain-name": b"y"}


def damage_truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 20)


def damage_flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def damage_header(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"-> X25519", b"-> extra\n\n-> X25519", 1))


def damage_replace(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04 this is a zip file\n")


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


def damage_cut_in_header(path: Path) -> None:
    os.truncate(path, 40)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (damage_truncate, "cut short|does not authenticate"),
        (damage_flip, "chunk 3 does not authenticate"),
        (damage_header, "MAC does not fit"),
        (damage_replace, "not an age file"),
        (damage_empty, "ends before the version line"),
        (damage_cut_in_header, "header ends"),
    ],
)
def test_a_damaged_file_refuses_the_load_with_its_name(
    damage: Callable[[Path], None], text: str, model_dir: Path, fake_model: Fake
) -> None:
    damage(model_dir / "1/model.onnx.age")
    model = fake_model(model_dir)
    with pytest.raises(InvalidArgumentError, match=rf"^1/model\.onnx\.age: .*({text})"):
        DecryptAgent().load(model.as_model())
    assert not model.updated
    assert not (model.target / "1/model.onnx").exists()


def test_the_wrong_key_is_one_clear_message(model_dir: Path, fake_model: Fake) -> None:
    stranger = X25519Identity.generate().export()
    model = fake_model(model_dir, ("identity", "file:/stranger"), stranger=stranger.encode())
    with pytest.raises(InvalidArgumentError, match=r"weights\.bin\.age: no identity fits.* 2 x X25519") as error:
        DecryptAgent().load(model.as_model())
    assert stranger not in str(error.value)


def test_a_model_without_encrypted_files_is_refused(make_tree: Make, fake_model: Fake) -> None:
    model = fake_model(make_tree({"1/model.onnx": b"plain"}))
    with pytest.raises(NotFoundError, match="nothing to decrypt"):
        DecryptAgent().load(model.as_model())
    assert not model.acquired


PUBLIC = {
    "config.pbtxt": b"",
    "configs/a.pbtxt": b"",
    "README.md": b"",
    "LICENSE": b"",
    "SHA256SUMS": b"",
    "model.sig": b"",
}


@pytest.mark.parametrize(
    "plain",
    ["model.safetensors", "config.json", "tokenizer.json", "onnx/1/model.onnx", "01/w", "0/w", "\u0663/w", "1/w"],
)
def test_a_demanded_agent_takes_no_plain_weights_wherever_they_are(
    make_tree: Make,
    fake_model: Fake,
    identity: X25519Identity,
    encrypt_in_place: Callable[..., None],
    plain: str,
) -> None:
    """T27: also in a model without version directories."""
    root = make_tree({**PUBLIC, "secret.bin": b"x", "01/secret.bin": b"x"})
    for name in ("secret.bin", "01/secret.bin"):
        encrypt_in_place(root / name, identity.recipient)
    strict = [("identity", "file:/key"), ("unencrypted", "refuse")]
    DecryptAgent().load(fake_model(root, *strict).as_model())
    (root / plain).parent.mkdir(parents=True, exist_ok=True)
    (root / plain).write_bytes(b"plain")
    with pytest.raises(InvalidArgumentError, match=f"'{plain}' .* is not encrypted"):
        DecryptAgent().load(fake_model(root, *strict).as_model())


@pytest.mark.parametrize("name", ["labels.txt", "classes.csv", "warmup/sample", "initial_state/zeros", "LICENSE"])
def test_labels_and_samples_beside_versions_may_be_plain(model_dir: Path, fake_model: Fake, name: str) -> None:
    (model_dir / name).parent.mkdir(exist_ok=True)
    (model_dir / name).write_bytes(b"plain")
    DecryptAgent().load(fake_model(model_dir, ("identity", "file:/key"), ("unencrypted", "refuse")).as_model())


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "env.tar.gz", "code/model.py", "warmup.bin"])
def test_other_files_beside_versions_are_refused_when_plain(model_dir: Path, fake_model: Fake, name: str) -> None:
    (model_dir / name).parent.mkdir(exist_ok=True)
    (model_dir / name).write_bytes(b"plain")
    with pytest.raises(InvalidArgumentError, match=f"'{name}' outside of version directories is not encrypted"):
        DecryptAgent().load(fake_model(model_dir, ("identity", "file:/key"), ("unencrypted", "refuse")).as_model())


def test_a_cancelled_load_stops(model_dir: Path, fake_model: Fake) -> None:
    model = fake_model(model_dir)
    model.cancelled = True
    with pytest.raises(CancelledError):
        DecryptAgent().load(model.as_model())
    assert not model.updated


def test_a_missing_key_is_reported_before_anything_is_read(make_tree: Make, fake_model: Fake) -> None:
    model = fake_model(make_tree({}), ("identity", "file:/nowhere"))
    with pytest.raises(NotFoundError, match="nowhere"):
        DecryptAgent().load(model.as_model())


def test_every_other_action_does_nothing(model_dir: Path, fake_model: Fake) -> None:
    agent, model = DecryptAgent(), fake_model(model_dir)
    for action in (agent.load_complete, agent.load_fail, agent.unload, agent.unload_complete):
        action(model.as_model())
    assert not model.acquired
