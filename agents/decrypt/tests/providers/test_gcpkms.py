"""Cloud KMS: the reference, and the call made to a stand-in for Google's library (no such server to test against)."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from repoagent_decrypt.providers.gcpkms import fetch, key_name

from repoagent.api import InvalidArgumentError, UnavailableError, UnsupportedError

NAME = "projects/p/locations/europe-west1/keyRings/r/cryptoKeys/k"


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Calls that the stand-in got."""
    calls: list[dict[str, Any]] = []

    class Client:
        def decrypt(self, request: dict[str, Any]) -> SimpleNamespace:
            calls.append(request)
            if request["ciphertext"] == b"bad":
                raise PermissionError("with details that are not ours to repeat")
            return SimpleNamespace(plaintext=b"AGE-SECRET-KEY-1X")

    cloud, kms = ModuleType("google.cloud"), ModuleType("google.cloud.kms")
    kms.KeyManagementServiceClient = Client  # type: ignore[attr-defined]
    cloud.kms = kms  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "google.cloud", cloud)
    monkeypatch.setitem(sys.modules, "google.cloud.kms", kms)
    return calls


def test_the_reference_names_a_key() -> None:
    assert key_name(f"gcpkms:{NAME}?ciphertext=AA==") == NAME


@pytest.mark.parametrize("uri", ["gcpkms:projects/p", f"gcpkms:{NAME}/cryptoKeyVersions/1", f"gcpkms://h/{NAME}",
                                 "gcpkms:projects/p/locations/l/keyRings/r/keys/k"])  # fmt: skip
def test_other_names_are_refused(uri: str) -> None:
    with pytest.raises(InvalidArgumentError):
        key_name(uri)


def test_the_library_is_asked_to_decrypt(google: list[dict[str, Any]]) -> None:
    assert fetch(f"gcpkms:{NAME}?ciphertext=aGVsbG8=") == b"AGE-SECRET-KEY-1X"
    assert google == [{"name": NAME, "ciphertext": b"hello"}]


def test_what_the_library_raises_is_named_by_its_kind_only(google: list[dict[str, Any]]) -> None:
    with pytest.raises(UnavailableError, match="PermissionError") as error:
        fetch(f"gcpkms:{NAME}?ciphertext=YmFk")
    assert "details" not in str(error.value)


def test_without_the_library_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.cloud", None)
    with pytest.raises(UnsupportedError, match=r"agents/decrypt\[gcpkms\]"):
        fetch(f"gcpkms:{NAME}?ciphertext=AAAA")
