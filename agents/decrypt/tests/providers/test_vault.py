"""Vault's HTTP interface, as its API documentation describes it, spoken by a local server."""

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
from repoagent_decrypt.providers.vault import fetch

from repoagent.api import InvalidArgumentError, NotFoundError, UnavailableError

TOKEN = "hvs.test-token"
SECRETS = {
    "/v1/secret/data/models/digits": {"age": "AGE-SECRET-KEY-1NEW", "other": "x"},
    "/v1/secret/data/models/digits?version=1": {"age": "AGE-SECRET-KEY-1OLD"},
    "/v1/team/kv/data/number": {"value": 7},
}


@pytest.fixture
def vault(service: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Reads of KV version 2 and decryption by transit; errors as Vault words them."""

    def answer(asked: Any) -> tuple[int, dict[str, str], bytes]:
        if asked.headers.get("X-Vault-Token") != TOKEN:
            return 403, {}, json.dumps({"errors": ["permission denied"]}).encode()
        if asked.path in SECRETS and asked.method == "GET":
            data = {"data": SECRETS[asked.path], "metadata": {"version": 2, "destroyed": False}}
            return 200, {}, json.dumps({"request_id": "1", "data": data}).encode()
        if asked.path == "/v1/transit/decrypt/models" and asked.method == "POST":
            return decrypt(json.loads(asked.body)["ciphertext"])
        return 404, {}, json.dumps({"errors": []}).encode()

    def decrypt(ciphertext: str) -> tuple[int, dict[str, str], bytes]:
        if not ciphertext.startswith("vault:v1:"):
            return 400, {}, json.dumps({"errors": ["invalid ciphertext: no prefix"]}).encode()
        plain = base64.b64decode(ciphertext.removeprefix("vault:v1:"))[::-1]
        return 200, {}, json.dumps({"data": {"plaintext": base64.b64encode(plain).decode()}}).encode()

    service.answer = answer
    monkeypatch.setenv("VAULT_ADDR", service.url)
    monkeypatch.setenv("VAULT_TOKEN", TOKEN)
    monkeypatch.delenv("VAULT_NAMESPACE", raising=False)
    return service


def test_a_field_of_a_secret_is_read(vault: Any) -> None:
    assert fetch("vault:kv/secret/models/digits#age") == b"AGE-SECRET-KEY-1NEW"
    assert vault.asked[0].headers["X-Vault-Request"] == "true"


def test_a_version_may_be_asked_for_and_a_single_field_needs_no_name(vault: Any) -> None:
    assert fetch("vault:kv/secret/models/digits?version=1") == b"AGE-SECRET-KEY-1OLD"


def test_a_namespace_is_passed_on(vault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAULT_NAMESPACE", "team")
    fetch("vault:kv/secret/models/digits#age")
    assert vault.asked[0].headers["X-Vault-Namespace"] == "team"


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("vault:kv/secret/models/nowhere#age", "nothing for the key reference vault:kv/secret/models/nowhere"),
        ("vault:kv/secret/models/digits", "choose one with #FIELD"),
        ("vault:kv/secret/models/digits#missing", "no text field 'missing'"),
        ("vault:kv/team%2Fkv/number#value", "no text field 'value'"),
    ],
)
def test_what_is_not_there_is_said(uri: str, text: str, vault: Any) -> None:
    with pytest.raises(NotFoundError, match=text):
        fetch(uri)


def test_transit_unwraps_a_key(vault: Any, tmp_path: Path) -> None:
    wrapped = "vault:v1:" + base64.b64encode(b"AGE-SECRET"[::-1] * 3).decode()
    (tmp_path / "key.wrapped").write_text(wrapped + "\n")
    assert fetch(f"vault:transit/transit/models?ciphertext-file={tmp_path}/key.wrapped") == b"AGE-SECRET" * 3
    assert fetch(f"vault:transit/transit/models?ciphertext={wrapped}") == b"AGE-SECRET" * 3


def test_what_is_not_wrapped_by_vault_is_not_sent_to_it(
    vault: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "private").write_text("-----BEGIN PRIVATE KEY-----")
    (tmp_path / "binary").write_bytes(b"\xff\x00")
    (tmp_path / "two").write_text("vault:v1:AAAA\nroot:x:0:0")
    (tmp_path / "directory").mkdir()
    (tmp_path / "large").write_bytes(b"x" * (2 << 20))
    os.mkfifo(tmp_path / "pipe")
    texts = set()
    for name in ("private", "binary", "two", "directory", "large", "pipe", "absent", "binary/below", "nul%00"):
        with pytest.raises(NotFoundError) as error:
            fetch(f"vault:transit/transit/models?ciphertext-file={tmp_path}/{name}")
        texts.add(str(error.value))
    assert texts == {
        "there is no usable ciphertext file for the key reference vault:transit/transit/models; the log has the reason"
    }
    with pytest.raises(InvalidArgumentError, match="has not the form of one"):
        fetch("vault:transit/transit/models?ciphertext=garbage")
    assert not vault.asked
    assert "No such file or directory" in caplog.text


@pytest.mark.parametrize(
    "path",
    ["kv/secret%2F..%2F..%2Fsys/raw", "kv/secret/%2e%2e/x", "kv/secret/a%2F..%2Fb", "kv/%2Fsecret/a", "kv/secret/a%2F",
     "transit/transit%2F..%2Fother/models", "kv/secret/a%2F%2Fb", "kv/secret/.%2Fb"],
)  # fmt: skip
def test_an_escaped_slash_hides_no_relative_part(path: str, vault: Any) -> None:
    option = "?ciphertext=vault:v1:AAAA" if path.startswith("transit") else "#x"
    with pytest.raises(InvalidArgumentError, match="empty or relative part"):
        fetch(f"vault:{path}{option}")
    assert not vault.asked


def test_a_key_that_was_rotated_is_unwrapped(vault: Any) -> None:
    with pytest.raises(UnavailableError, match=r"\(HTTP 400\)$"):
        fetch("vault:transit/transit/models?ciphertext=vault:v2:AAAA")
    assert json.loads(vault.asked[0].body) == {"ciphertext": "vault:v2:AAAA"}


def test_a_bad_token_is_refused_without_showing_it(
    vault: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("VAULT_TOKEN", "hvs.wrong")
    with pytest.raises(UnavailableError, match=r"\(HTTP 403\)$") as error:
        fetch("vault:kv/secret/models/digits#age")
    assert "permission denied" in caplog.text
    assert "hvs.wrong" not in str(error.value) + caplog.text


def test_the_token_of_vault_login_is_used(vault: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("VAULT_TOKEN")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UnavailableError, match="no token for Vault"):
        fetch("vault:kv/secret/models/digits#age")
    (tmp_path / ".vault-token").write_text(TOKEN + "\n")
    assert fetch("vault:kv/secret/models/digits#age") == b"AGE-SECRET-KEY-1NEW"


@pytest.mark.slow
def test_an_answer_that_makes_no_sense_is_an_error(vault: Any) -> None:
    for body in (b"<html>", b"[]", b'{"data": {"plaintext": 1}}', b'{"data": []}'):
        vault.answer = lambda _asked, body=body: (200, {}, body)
        with pytest.raises(UnavailableError, match="makes no sense"):
            fetch("vault:transit/transit/models?ciphertext=vault:v1:x")
        with pytest.raises(NotFoundError):
            fetch("vault:kv/secret/models/digits#age")


@pytest.mark.parametrize("uri", ["vault:", "vault:secret/x#y", "vault:kv/secret", "vault:transit/m/k/x?ciphertext=a",
                                 "vault:kv/secret/../x", "vault:kv/a/b?ciphertext=x"])  # fmt: skip
def test_other_forms_are_refused(uri: str, vault: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        fetch(uri)
    assert not vault.asked
