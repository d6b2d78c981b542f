"""Finding encrypted files, their exact sizes, and keys of other kinds."""

from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from repoagent_decrypt.age.keys import Identities, parse_identities, parse_recipients
from repoagent_decrypt.age.pyrage_keys import encrypt_file_foreign
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_decrypt.age.stream import CHUNK
from repoagent_decrypt.decryption import DEFAULT_FILES, decrypting, scan_encrypted
from repoagent_decrypt.files.errors import NoMatchError
from repoagent_decrypt.files.positional import Workers
from repoagent_decrypt.formats import Keys
from repoagent_decrypt.patterns import Patterns

from repoagent.api import InvalidArgumentError

Make = Callable[..., Path]
ALL = Patterns.of(DEFAULT_FILES)


@pytest.mark.parametrize("size", [0, 1, CHUNK, CHUNK + 1, 3 * CHUNK - 1])
def test_the_plaintext_size_is_known_before_decrypting(
    size: int, make_tree: Make, identity: X25519Identity, encrypt_in_place: Callable[..., None]
) -> None:
    root = make_tree({"1/a": bytes(size), "1/b": bytes(size)})
    encrypt_in_place(root / "1/a", identity.recipient)
    encrypt_in_place(root / "1/b", identity.recipient, armored=True)
    exact, armored = scan_encrypted(root, ALL, Keys()).items
    assert exact.size == size
    assert armored.size >= size


def test_a_file_that_is_all_ending_is_refused(make_tree: Make) -> None:
    for name in (".age", "1/.age"):
        with pytest.raises(InvalidArgumentError, match="nothing would be left"):
            scan_encrypted(make_tree({name: b"x"}), ALL, Keys())


def test_an_ssh_identity_is_tried_when_no_age_key_fits(
    make_tree: Make, identity: X25519Identity, tmp_path: Path, encrypt_in_place: Callable[..., None],
    crew: Callable[[int], Workers],
) -> None:  # fmt: skip
    pytest.importorskip("pyrage")
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    root = make_tree({"a": b"for ssh", "b": b"for age"})
    encrypt_file_foreign(root / "a", root / "a.age", parse_recipients(public, "id.pub"))
    encrypt_in_place(root / "b", identity.recipient)
    transform = decrypting(Keys(Identities((identity,)) + parse_identities(pem, "id")), crew(2))
    for name in ("a", "b"):
        transform(root / f"{name}.age", tmp_path / name, lambda _done: None)
    assert ((tmp_path / "a").read_bytes(), (tmp_path / "b").read_bytes()) == (b"for ssh", b"for age")
    with pytest.raises(NoMatchError):
        decrypting(Keys(Identities((identity,))), crew(2))(root / "a.age", tmp_path / "no", lambda _done: None)
