"""AWS KMS, spoken by moto's server to an unmodified botocore."""

import base64
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from repoagent_decrypt.providers.awskms import fetch

from repoagent.api import NotFoundError, UnavailableError, UnsupportedError


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    moto = pytest.importorskip("moto.server")
    running = moto.ThreadedMotoServer(port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def kms(server: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of that server, and the environment from which the provider makes its own."""
    from botocore.session import get_session

    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_ENDPOINT_URL_KMS": server.replace("0.0.0.0", "127.0.0.1"),
    }.items():
        monkeypatch.setenv(name, value)
    return get_session().create_client("kms")


@pytest.mark.slow
def test_a_wrapped_key_is_unwrapped_from_file_and_base64(kms: Any, tmp_path: Path) -> None:
    key = kms.create_key()["KeyMetadata"]["KeyId"]
    blob = kms.encrypt(KeyId=key, Plaintext=b"AGE-SECRET-KEY-1X")["CiphertextBlob"]
    (tmp_path / "key.kms").write_bytes(blob)
    assert fetch(f"awskms:?ciphertext-file={tmp_path}/key.kms") == b"AGE-SECRET-KEY-1X"
    text = base64.b64encode(blob).decode()
    assert fetch(f"awskms:{key}?ciphertext={text}&region=eu-west-1") == b"AGE-SECRET-KEY-1X"


def test_the_encryption_context_must_be_the_same(kms: Any) -> None:
    key = kms.create_key()["KeyMetadata"]["KeyId"]
    sealed = kms.encrypt(KeyId=key, Plaintext=b"x", EncryptionContext={"model": "digits"})["CiphertextBlob"]
    text = base64.b64encode(sealed).decode()
    assert fetch(f"awskms:{key}?ciphertext={text}&context.model=digits") == b"x"
    with pytest.raises(UnavailableError, match="InvalidCiphertext"):
        fetch(f"awskms:{key}?ciphertext={text}&context.model=other")


@pytest.mark.slow
def test_a_key_that_does_not_exist_is_said(kms: Any) -> None:
    with pytest.raises((NotFoundError, UnavailableError), match="awskms:alias/nowhere"):
        fetch("awskms:alias/nowhere?ciphertext=AAAA")


def test_no_region_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("botocore")
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(UnavailableError, match="region"):
        fetch("awskms:?ciphertext=AAAA")


def test_without_botocore_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.exceptions", None)
    with pytest.raises(UnsupportedError, match=r"pip install '\./agents/decrypt\[awskms\]'"):
        fetch("awskms:?ciphertext=AAAA")
