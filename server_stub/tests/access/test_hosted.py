"""The ports of SageMaker and Vertex AI: other paths, the same rights."""

from collections.abc import Iterator

import httpx
import pytest
from repoagent_server.access import Right, Scope
from repoagent_server.handlers.inference import Served
from repoagent_server.http.api import api_service
from repoagent_server.http.hosting.sagemaker import SageMaker, SageMakerOptions
from repoagent_server.http.hosting.service import hosted
from repoagent_server.http.hosting.vertex import Vertex, VertexOptions

from server_stub.tests.access.conftest import Guarded, client_of
from server_stub.tests.access.kinds import ADMITTED, LIMITED, UNKNOWN, expected, headers

BODY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}


@pytest.fixture(params=["sagemaker", "vertex"])
def web(guarded: Guarded, request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """A client of a platform's port, whose model is ``fraud-us``."""
    platform = (
        SageMaker(SageMakerOptions(), "fraud-us")
        if request.param == "sagemaker"
        else Vertex(VertexOptions("/ping", "/invocations"), "fraud-us")
    )
    service = api_service(Served(guarded.core, access=guarded.file.access), make_service=hosted(platform))
    with client_of(service) as client:
        yield client


def test_a_platforms_routes_times_every_kind_of_client(guarded: Guarded, web: httpx.Client) -> None:
    for kind in (*UNKNOWN, *LIMITED, *ADMITTED):
        shown = headers(kind, Right.INFER, guarded.issuer)
        assert web.get("/ping", headers=shown).status_code == 200
        assert web.post("/invocations", json=BODY, headers=shown).status_code == expected(kind, Scope.MODEL), kind


@pytest.mark.parametrize("path", ["v2/models/shared", "v2/repository/index", "v2/models/shared/infer", "metrics"])
def test_a_header_that_leads_elsewhere_leads_through_the_check(web: httpx.Client, path: str) -> None:
    """Vertex AI's; SageMaker has none, and asks its own model."""
    headers = {"x-vertex-ai-triton-redirect": path}
    assert web.post("/invocations", json=BODY, headers=headers).status_code in (401, 404)
    answer = web.post("/invocations", json=BODY, headers={**headers, "x-api-key": "fraud-key"})
    assert "shared" not in answer.text.replace("model 'shared'", "")
