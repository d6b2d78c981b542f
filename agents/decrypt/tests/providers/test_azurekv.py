"""Azure Key Vault: the reference, and the call made to a stand-in for Azure's library."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from repoagent_decrypt.providers.azurekv import fetch, secret_name

from repoagent.api import InvalidArgumentError, UnavailableError, UnsupportedError

URI = "azurekv://myvault.vault.azure.net/secrets/age-key"


@pytest.fixture
def azure(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls that the stand-in got."""
    calls: list[Any] = []

    class Client:
        def __init__(self, vault_url: str, credential: object) -> None:
            calls.append(vault_url)

        def get_secret(self, name: str, version: str | None) -> SimpleNamespace:
            calls.append((name, version))
            if name == "bad":
                raise PermissionError("with details that are not ours to repeat")
            return SimpleNamespace(value="AGE-SECRET-KEY-1X")

    for name, attribute, value in [
        ("azure", "", None),
        ("azure.identity", "DefaultAzureCredential", object),
        ("azure.keyvault", "", None),
        ("azure.keyvault.secrets", "SecretClient", Client),
    ]:
        module = ModuleType(name)
        if attribute:
            setattr(module, attribute, value)
        monkeypatch.setitem(sys.modules, name, module)
    return calls


def test_the_reference_names_vault_secret_and_version() -> None:
    assert secret_name(URI) == ("https://myvault.vault.azure.net", "age-key", None)
    assert secret_name(URI + "/abc123")[2] == "abc123"


@pytest.mark.parametrize("uri", ["azurekv:secrets/x", "azurekv://host/secrets/x", URI + "/1/2", "azurekv://a.b/keys/x",
                                 "azurekv://a.b/secrets", "azurekv://u@a.b/secrets/x"])  # fmt: skip
def test_other_forms_are_refused(uri: str) -> None:
    with pytest.raises(InvalidArgumentError):
        secret_name(uri)


def test_the_library_is_asked_for_the_secret(azure: list[Any]) -> None:
    assert fetch(URI + "/v1") == b"AGE-SECRET-KEY-1X"
    assert azure == ["https://myvault.vault.azure.net", ("age-key", "v1")]


def test_what_the_library_raises_is_named_by_its_kind_only(azure: list[Any]) -> None:
    with pytest.raises(UnavailableError, match="PermissionError") as error:
        fetch("azurekv://myvault.vault.azure.net/secrets/bad")
    assert "details" not in str(error.value)


def test_without_the_library_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    with pytest.raises(UnsupportedError, match=r"agents/decrypt\[azurekv\]"):
        fetch(URI)
