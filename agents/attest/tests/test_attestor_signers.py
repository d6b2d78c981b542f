"""Keys that sign where they are, with the signers of securesystemslib that need no server."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from repoagent_attest.attestor import Signer
from securesystemslib.dsse import Envelope
from securesystemslib.signer._crypto_signer import CryptoSigner
from securesystemslib.signer._key import SSlibKey
from securesystemslib.signer._signer import SIGNER_FOR_URI_SCHEME

from agents.attest.tests.conftest import NewLoader
from repoagent.api.envelopes import key_id, read_public_key, sign, verify
from repoagent.errors import InvalidArgumentError, UnavailableError, UnsupportedError
from repoagent.storage.repositories.sources import open_source

SECRET = "a-credential-of-the-operator"
KEYS = [
    ec.generate_private_key(ec.SECP256R1()),
    ec.generate_private_key(ec.SECP384R1()),
    ec.generate_private_key(ec.SECP521R1()),
    ed25519.Ed25519PrivateKey.generate(),
]


def files_of(key: Any, place: Path) -> tuple[Path, Path]:
    """The private and the public key in files."""
    private, public = place / "key.pem", place / "public.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


@pytest.mark.parametrize("key", KEYS, ids=["P-256", "P-384", "P-521", "Ed25519"])
def test_what_a_signer_signs_holds_here_and_for_securesystemslib(key: Any, tmp_path: Path) -> None:
    private, public = files_of(key, tmp_path)
    bundle = sign(b"{}", Signer(f"signer:file2:{private}#{public}".encode()))
    assert verify(bundle, read_public_key(public.read_bytes())) == b"{}"
    known = SSlibKey.from_crypto(key.public_key(), keyid=key_id(key.public_key()))
    assert Envelope.from_dict(bundle["dsseEnvelope"]).verify([known], 1)


def test_a_load_leaves_a_receipt_that_a_signer_signed(
    new_loader: NewLoader, receipts: Path, model: Path, tmp_path: Path
) -> None:
    private, public = files_of(KEYS[0], tmp_path)
    chain = new_loader(key=f"signer:file2:{private}#{public}").load(open_source("m", str(model)))
    chain.attest([1])
    for path in receipts.iterdir():
        assert verify(json.loads(path.read_text()), read_public_key(public.read_bytes()))
    assert len(list(receipts.iterdir())) == 2


def test_a_signer_with_another_key_is_refused_at_the_start(tmp_path: Path) -> None:
    private, _ = files_of(KEYS[0], tmp_path)
    (tmp_path / "other").mkdir()
    _, other = files_of(ec.generate_private_key(ec.SECP256R1()), tmp_path / "other")
    with pytest.raises((InvalidArgumentError, UnavailableError), match="the signer file2:"):
        Signer(f"signer:file2:{private}#{other}".encode())


@pytest.mark.parametrize(
    "text", ["signer:", "signer:file2:/key", "signer:file2:/key#public.pem", "signer:#/public.pem"]
)
def test_a_reference_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="expected signer:URI#/path"):
        Signer(text.encode())


def test_a_scheme_that_is_not_known_is_refused_with_those_that_are(tmp_path: Path) -> None:
    _, public = files_of(KEYS[0], tmp_path)
    with pytest.raises(InvalidArgumentError, match=r"it has .*awskms:.*hv:"):
        Signer(f"signer:https://user:{SECRET}@host/#{public}".encode())


def test_a_package_that_is_missing_is_named_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private, public = files_of(KEYS[0], tmp_path)
    monkeypatch.setitem(sys.modules, "securesystemslib.signer", None)
    with pytest.raises(UnsupportedError, match=r"pip install '\./agents/attest\[kms\]'"):
        Signer(f"signer:file2:{private}#{public}".encode())


class _Failing(CryptoSigner):
    """A KMS that is not there (any more)."""

    @classmethod
    def from_priv_key_uri(cls, *_: Any, **__: Any) -> "_Failing":
        made: _Failing = cls.__new__(cls)
        return made

    def sign(self, payload: bytes) -> Any:
        raise RuntimeError(f"https://user:{SECRET}@kms")


def test_what_a_signer_raises_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, public = files_of(KEYS[0], tmp_path)
    monkeypatch.setitem(SIGNER_FOR_URI_SCHEME, "failing", _Failing)
    with pytest.raises(UnavailableError, match="the signer failing: does not sign: RuntimeError") as raised:
        Signer(f"signer:failing:{SECRET}#{public}".encode())
    assert SECRET not in str(raised.value)
