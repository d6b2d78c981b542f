"""The agent decrypts each format by its content, several in one model, and names what is missing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jwcrypto import jwe, jwk
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_decrypt.agent import DecryptAgent
from repoagent_decrypt.files.positional import Workers
from repoagent_decrypt.tink.files import encrypt_file
from repoagent_decrypt.tink.keyset import parse_keyset

from agents.decrypt.tests.tink.test_keyset import keyset
from repoagent.api import InvalidArgumentError

KEY = jwk.JWK.generate(kty="oct", size=256)


@pytest.fixture
def model_dir(tmp_path: Path, identity: X25519Identity, encrypt_in_place: Callable[..., None]) -> Path:
    root = tmp_path / "model"
    (root / "1").mkdir(parents=True)
    (root / "1/a").write_bytes(b"aaa" * 50_000)
    encrypt_in_place(root / "1/a", identity.recipient)
    (tmp_path / "b").write_bytes(b"bbb" * 50_000)
    with Workers(2) as workers:
        encrypt_file(tmp_path / "b", root / "1/b.tink", parse_keyset(keyset(), "k")[0], workers=workers)
    token = jwe.JWE(b"ccc" * 50_000, json.dumps({"alg": "dir", "enc": "A256GCM"}))
    token.add_recipient(KEY)
    (root / "1/c.jwe").write_text(token.serialize(compact=True))
    return root


def test_three_formats_in_one_model(
    model_dir: Path, fake_model: Callable[..., Any], read_tree: Callable[[Path], dict[str, bytes]]
) -> None:
    model = fake_model(
        model_dir,
        ("identity", "file:/key"),
        ("keyset", "file:/keyset"),
        ("jwe_key", "file:/jwk"),
        keyset=keyset(),
        jwk=KEY.export().encode(),
    )
    DecryptAgent().load(model.as_model())
    contents = {f"1/{name}": name.encode() * 150_000 for name in "abc"}
    assert read_tree(model.target) == contents


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ((("identity", "file:/key"),), r"1/b\.tink: a file in the Tink format, and no key for it: .*'keyset'"),
        ((("keyset", "file:/keyset"),), r"1/a\.age: a file in the age format, and no key for it: .*'identity'"),
    ],
)
def test_a_format_without_a_key_names_the_parameter(
    model_dir: Path, fake_model: Callable[..., Any], parameters: tuple[tuple[str, str], ...], message: str
) -> None:
    model = fake_model(model_dir, *parameters, keyset=keyset())
    with pytest.raises(InvalidArgumentError, match=message):
        DecryptAgent().load(model.as_model())
