"""Offline no server is asked, whatever the source; what is pinned comes from the cache."""

from collections.abc import Callable, Iterator

import pytest

from agents.fetch.tests.servers import Hub, Registry, Tracking, sha256
from repoagent.errors import RepoAgentError
from tests.file_server import FileServer

Fetch = Callable[..., dict[str, bytes]]
TITLE = "org.opencontainers.image.title"
PINNED = {"digest": f"model.onnx={sha256(b'weights')}"}
FLOATING = {"floating": "true"}


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, tuple[str, str, list[FileServer]]]]:
    """Scheme -> the model by a name that may change, the same pinned, and who is asked."""
    with Hub() as hub, Registry() as registry, Tracking() as tracking, FileServer() as web:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking.url)
        monkeypatch.setenv("REPOAGENT_FETCH_HOSTS", hub.large.host)
        hub.models["acme/m"] = {"model.onnx": b"weights"}
        tracking.artifacts = {"1/models/m-1/artifacts/model.onnx": b"weights"}
        web.files["/m/model.onnx"] = b"weights"
        digest = registry.push("m", [registry.layer("m", "a/b", b"weights", **{TITLE: "model.onnx"})])
        yield {
            "hf": ("hf://acme/m", f"hf://acme/m@{hub.commit}", [hub, hub.large]),
            "oci": (f"oci://{registry.host}/m:v1", f"oci://{registry.host}/m@{digest}", [registry]),
            "models": ("models:/fraud/3", "models:/fraud/3", [tracking]),
            "http": (f"{web.url}/m/model.onnx", f"{web.url}/m/model.onnx", [web]),
        }


@pytest.mark.parametrize("scheme", ["hf", "oci", "models", "http"])
def test_a_pinned_model_comes_from_the_cache_and_nothing_else_is_asked_for(
    fetch: Fetch,
    servers: dict[str, tuple[str, str, list[FileServer]]],
    scheme: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    floating, pinned, asked = servers[scheme]
    given = PINNED if pinned == floating else {}
    expected = {"1/model.onnx": b"weights"}
    assert fetch({"url": pinned, **given}) == expected
    assert fetch({"url": floating, **FLOATING}) == expected
    before = [len(server.requests) for server in asked]
    monkeypatch.setenv("REPOAGENT_OFFLINE", "1")
    assert fetch({"url": pinned, **given}) == expected
    with pytest.raises(RepoAgentError, match=r"the server is offline \(REPOAGENT_OFFLINE\)"):
        fetch({"url": floating, **FLOATING})
    assert [len(server.requests) for server in asked] == before


@pytest.mark.parametrize("scheme", ["hf", "oci", "models", "http"])
def test_what_was_pinned_by_digests_comes_from_the_cache(
    fetch: Fetch,
    servers: dict[str, tuple[str, str, list[FileServer]]],
    scheme: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, _, asked = servers[scheme]
    fetch({"url": url, **PINNED})
    before = [len(server.requests) for server in asked]
    monkeypatch.setenv("REPOAGENT_OFFLINE", "1")
    assert fetch({"url": url, **PINNED}) == {"1/model.onnx": b"weights"}
    assert [len(server.requests) for server in asked] == before
