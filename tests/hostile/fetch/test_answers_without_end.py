"""Answers that are small on the wire and large in the parser, which stops every thread of the server."""

from collections.abc import Callable

import pytest

from agents.fetch.tests.servers import Hub, Registry, Tracking
from repoagent.errors import RepoAgentError
from tests.file_server import FileServer, Request

Fetch = Callable[..., dict[str, bytes]]


@pytest.mark.parametrize("unit", [b"[],", b"{},", b"0,", b'"a",'], ids=["lists", "objects", "numbers", "texts"])
def test_a_million_values_are_refused_before_they_are_parsed(
    fetch: Fetch, hub: Hub, registry: Registry, monkeypatch: pytest.MonkeyPatch, unit: bytes
) -> None:
    body = b"[" + unit * 700_000 + b"0]"

    def answer(request: Request) -> bool:
        request.answer(200, body)
        return True

    with Tracking() as tracking:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking.url)
        servers: list[FileServer] = [hub, registry, tracking]
        for server in servers:
            server.handlers.insert(0, answer)
        for url in (
            f"hf://acme/m@{hub.commit}",
            "models:/fraud@champion",
            f"oci://{registry.host}/m@sha256:{'0' * 64}",
        ):
            with pytest.raises(RepoAgentError, match="more than 500000 values"):
                fetch({"url": url, "floating": "true"})


def test_a_listing_that_goes_on_and_on_ends_with_its_load(
    fetch: Fetch, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page may take a minute, and there may be a thousand."""

    def page(request: Request) -> bool:
        request.answer(200, b"[]", {"Link": f'<{hub.url}{request.path}>; rel="next"'})
        return True

    def folder(request: Request) -> bool:
        if request.target.endswith("/artifacts"):
            request.answer(200, b'{"files": [{"path": "deeper", "is_dir": true}]}')
        return request.target.endswith("/artifacts")

    with Tracking() as tracking:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking.url)
        servers: list[tuple[FileServer, str]] = [(hub, f"hf://acme/m@{hub.commit}"), (tracking, "models:/fraud/3")]
        hub.handlers.insert(0, page)
        tracking.handlers.insert(0, folder)
        for server, url in servers:
            with pytest.raises(RepoAgentError, match=r"cancelled while .* was listed"):
                fetch({"url": url, "floating": "true"}, cancelled=lambda server=server: len(server.requests) > 5)
            assert len(server.requests) < 10
