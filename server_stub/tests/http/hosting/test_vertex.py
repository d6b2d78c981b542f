"""Vertex AI's routes."""

from collections.abc import Callable
from typing import Any, Final

import httpx
import pytest
from repoagent_server.handlers.headers import Api, Restriction
from repoagent_server.http.hosting.vertex import Vertex, VertexOptions

from repoagent.errors import InvalidArgumentError

Host = Callable[..., httpx.Client]

ROUTES: Final = {"AIP_HEALTH_ROUTE": "/health", "AIP_PREDICT_ROUTE": "/v1/models/m:predict"}
PREDICT: Final = ROUTES["AIP_PREDICT_ROUTE"]
REDIRECT: Final = "X-Vertex-Ai-Triton-Redirect"
ASKED: Final = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}


@pytest.fixture
def platform() -> Vertex:
    return Vertex(VertexOptions.of(ROUTES), "ident")


def test_health_and_predictions(host: Host, platform: Vertex) -> None:
    client = host(platform)
    assert client.get("/health").status_code == 200
    assert client.post(PREDICT, json=ASKED).json()["outputs"][0]["data"] == [1, 2]
    assert client.post("/v2/models/ident/infer", json=ASKED).status_code == 400


@pytest.mark.parametrize(
    ("redirect", "part"),
    [
        ("v2", '"name":"triton"'),
        ("v2/models/addsub", '"name":"addsub"'),
        ("v2/models/addsub/config", '"name":"addsub"'),
        ("v2/models/addsub/versions/1/stats", '"name":"addsub"'),
        ("v2/models/stats", '"name":"any"'),
        ("v2/repository/index", '"name":"any"'),
        ("metrics", "nv_inference_count"),
    ],
)
def test_a_header_leads_to_the_rest_of_the_api(host: Host, platform: Vertex, redirect: str, part: str) -> None:
    answer = host(platform, metrics=lambda: "nv_inference_count 1\n").post(PREDICT, headers={REDIRECT: redirect})
    assert (answer.status_code, part in answer.text) == (200, True), answer.text


def test_the_header_leads_to_another_model_and_to_loads(host: Host, core: Any, platform: Vertex) -> None:
    client = host(platform)
    answer = client.post(PREDICT, json=ASKED, headers={REDIRECT: "v2/models/slow/ready"})
    assert answer.status_code == 200
    assert client.post(PREDICT, headers={REDIRECT: "v2/repository/models/ident/load"}).status_code == 200
    assert core.calls == [("load", "ident", None, None)]


@pytest.mark.parametrize("redirect", ["", "nowhere", "/v2", "v2/../v2", "http://x/v2", PREDICT, "\xe9"])
def test_a_header_that_leads_nowhere_is_not_found(host: Host, platform: Vertex, redirect: str) -> None:
    answer = host(platform).post(PREDICT, headers=[(REDIRECT.encode(), redirect.encode("latin-1"))])
    assert answer.status_code == 404, answer.text


def test_only_post_is_redirected(host: Host, platform: Vertex) -> None:
    client = host(platform)
    assert client.get(PREDICT, headers={REDIRECT: "v2"}).status_code == 405
    assert client.get(PREDICT).status_code == 405


def test_the_guard_of_a_route_holds_for_a_redirected_request(host: Host, core: Any, platform: Vertex) -> None:
    client = host(platform, restrictions={Api.MODEL_REPOSITORY: Restriction("admin-key", b"secret")})
    redirect = {REDIRECT: "v2/repository/models/ident/unload"}
    assert client.post(PREDICT, headers=redirect).status_code == 403
    assert core.calls == []
    assert client.post(PREDICT, headers={**redirect, "admin-key": "secret"}).status_code == 200
    assert client.post(PREDICT, json=ASKED).status_code == 200


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "AIP_HEALTH_ROUTE is not defined"),
        ({"AIP_HEALTH_ROUTE": "/h"}, "AIP_PREDICT_ROUTE is not defined"),
        ({"AIP_HEALTH_ROUTE": "h", "AIP_PREDICT_ROUTE": "/p"}, "is not a path that begins with '/': 'h'"),
        ({"AIP_HEALTH_ROUTE": "/h?x", "AIP_PREDICT_ROUTE": "/p"}, "is not a path"),
        ({"AIP_HEALTH_ROUTE": "/p", "AIP_PREDICT_ROUTE": "/p"}, "are both '/p'"),
    ],
)
def test_routes_that_cannot_be_are_refused(environment: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message.replace("?", r"\?")):
        VertexOptions.of(environment)
