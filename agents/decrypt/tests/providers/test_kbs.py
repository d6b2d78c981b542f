"""The confidential data hub's resource endpoint."""

from typing import Any

import pytest
from repoagent_decrypt.providers.kbs import fetch

from repoagent.api import InvalidArgumentError, NotFoundError, UnavailableError


@pytest.fixture
def hub(service: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("REPOAGENT_KBS_URL", service.url)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # must not be used on loopback
    return service


def test_the_resource_is_asked_for_and_returned_as_it_is(hub: Any) -> None:
    hub.answer = lambda _asked: (200, {}, b"AGE-SECRET-KEY-1...\n")
    assert fetch("kbs:///default/age%20keys/model") == b"AGE-SECRET-KEY-1...\n"
    assert [(asked.method, asked.path) for asked in hub.asked] == [("GET", "/cdh/resource/default/age%20keys/model")]


def test_refusals_and_absences_are_told_apart(hub: Any) -> None:
    with pytest.raises(NotFoundError, match="kbs:///a/b/c"):
        fetch("kbs:///a/b/c")
    hub.answer = lambda _asked: (500, {}, b"attestation failed")
    with pytest.raises(UnavailableError, match="HTTP 500"):
        fetch("kbs:///a/b/c")


@pytest.mark.parametrize("uri", ["kbs:///a/b", "kbs:///a/b/c/d", "kbs://host/a/b/c", "kbs:///a/../c", "kbs:///a/b/c#x"])
def test_other_forms_are_refused(uri: str) -> None:
    with pytest.raises(InvalidArgumentError):
        fetch(uri)
