"""What needs a header on the HTTP port needs it on the ports of SageMaker and Vertex AI, too."""

from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest
from repoagent_server.handlers.headers import Api, Restriction, Restrictions
from repoagent_server.handlers.inference import Served
from repoagent_server.http.api import api_service
from repoagent_server.http.frontend import Endpoint, HttpFrontend
from repoagent_server.http.hosting.sagemaker import SageMaker, SageMakerOptions
from repoagent_server.http.hosting.service import Platform, hosted
from repoagent_server.http.hosting.vertex import Vertex, VertexOptions

_HEADER: Final = "x-key"
_SECRET: Final = "open sesame"
_REDIRECT: Final = "X-Vertex-Ai-Triton-Redirect"
_OPEN: Final = (Api.HEALTH, Api.INFERENCE)


@pytest.fixture(scope="module", params=["sagemaker", "vertex"])
def platform(request: pytest.FixtureRequest) -> Platform:
    if request.param == "sagemaker":
        return SageMaker(SageMakerOptions(), "numbers")
    return Vertex(VertexOptions("/health", "/invocations"), "numbers")


@pytest.fixture(scope="module")
def client(core: Any, platform: Platform) -> Iterator[httpx.Client]:
    """A client of a platform's port. Health and inference alone are open."""
    key = Restriction(_HEADER, _SECRET.encode())
    restrictions: Restrictions = {api: key for api in Api if api not in _OPEN}
    front = HttpFrontend(
        Endpoint(port=0), api_service(Served(core), make_service=hosted(platform), restrictions=restrictions)
    )
    front.start()
    address, port = front.bind()
    try:
        with httpx.Client(base_url=f"http://{address}:{port}", timeout=60) as client:
            yield client
    finally:
        front.stop()


@pytest.mark.parametrize(
    "redirect",
    [
        "v2",
        "v2/models/numbers/config",
        "v2/models/numbers/config?x=/v2/health/live",
        "v2/models/numbers",
        "v2/models/n%75mbers/config",
        "v2/models/stats",
        "v2/logging",
        "v2/trace/setting",
        "v2/repository/index",
        "v2/repository/models/numbers/unload",
        "v2/repository/models/numbers/report",
        "/v2/repository/index",
        "v2/health/../repository/index",
        "v2/health/live/../../repository/index",
        "V2/repository/index",
        "http://localhost/v2/repository/index",
        "x://y/v2/repository/index",
        "v2/systemsharedmemory/status",
    ],
)
def test_a_redirect_opens_nothing_that_is_restricted(client: httpx.Client, platform: Platform, redirect: str) -> None:
    answer = client.post("/invocations", headers={_REDIRECT: redirect}, json=_ask())
    if isinstance(platform, SageMaker):  # the header means nothing there
        assert answer.json()["outputs"][0]["data"] == [1, 2]
        return
    assert answer.status_code in (400, 403, 404), (redirect, answer.status_code, answer.text)
    assert "numbers" not in answer.text
    assert client.post("/invocations", json=_ask()).status_code == 200, "the model is still there"


@pytest.mark.parametrize(
    "path", ["/v2/repository/models/numbers/unload", "/v2", "/metrics", "//invocations", "/models"]
)
def test_the_port_has_no_other_paths(client: httpx.Client, path: str) -> None:
    answer = client.post(path, headers={_HEADER: _SECRET})
    assert (answer.status_code, answer.content) == (400, b"")


@pytest.mark.parametrize("size", ["99999999999999999999", "-5", "1e3", "0x10", "7;json-header-size=1", "\xb2"])
def test_a_size_that_lies_is_refused_or_taken_as_the_http_port_takes_it(client: httpx.Client, size: str) -> None:
    for kind in ("sagemaker", "vertex-ai"):
        media = f"application/vnd.{kind}-triton.binary+json;json-header-size={size}".encode("latin-1")
        answer = client.post("/invocations", json=_ask(), headers=[(b"content-type", media)])
        assert answer.status_code in (200, 400) or "failed to parse the request JSON" in answer.text, (
            size,
            answer.text,
        )
    assert client.post("/invocations", json=_ask()).status_code == 200


def _ask() -> dict[str, Any]:
    return {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
