"""A loader with the agent fetch, and servers that lie."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agents.fetch.tests.conftest import _no_proxy, fetch, notes
from agents.fetch.tests.servers import Hub, Registry
from repoagent.errors import RepoAgentError

__all__ = ["Fetch", "Refused", "_no_proxy", "fetch", "notes"]

Fetch = Callable[..., dict[str, bytes]]
Refused = Callable[..., None]


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as registry:
        yield registry


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("REPOAGENT_FETCH_HOSTS", hub.large.host)
        yield hub


@pytest.fixture
def refused(fetch: Fetch, registry: Registry) -> Refused:
    """Push an image of these layers, and see it refused with a text."""

    def run(layers: list[dict[str, Any]], text: str) -> None:
        digest = registry.push("evil", layers, config="application/vnd.oci.image.config.v1+json")
        with pytest.raises(RepoAgentError, match=text):
            fetch({"url": f"oci://{registry.host}/evil@{digest}"})

    return run
