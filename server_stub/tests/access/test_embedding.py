"""The same access object under front ends in another program, and under the program itself."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import tritonclient.grpc
from repoagent_server import AccessFile, KServeGrpc, KServeHttp, Metrics, asgi_app
from tritonclient.utils import InferenceServerException

from repoagent.server import Server
from server_stub.tests.access.conftest import client
from server_stub.tests.served import identity

KEY = {"x-api-key": "a-key"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    identity(tmp_path / "models", "m", "FP32", batch=8)
    with Server(model_repository=str(tmp_path / "models")) as server:
        yield server


@pytest.fixture
def file(path: Path) -> Iterator[AccessFile]:
    path.write_text(client("a", models="m", rights="infer metadata"))
    with AccessFile(path) as file:
        yield file


def test_embedded_front_ends_take_the_access_object(server: Server, file: AccessFile) -> None:
    with (
        KServeHttp(server, KServeHttp.Options(port=0), access=file.access) as http,
        KServeGrpc(server, KServeGrpc.Options(port=0), access=file.access) as grpc,
        Metrics(server, Metrics.Options(port=0), access=file.access) as metrics,
    ):
        url = "http://{}:{}".format(*http.address)
        assert httpx.get(f"{url}/v2/models/m").status_code == 401
        assert httpx.get(f"{url}/v2/models/m", headers=KEY).status_code == 200
        assert httpx.get("http://{}:{}/metrics".format(*metrics.address), headers=KEY).status_code == 403
        tensor = tritonclient.grpc.InferInput("INPUT0", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
        with tritonclient.grpc.InferenceServerClient("{}:{}".format(*grpc.address)) as triton:
            assert triton.infer("m", [tensor], headers=dict(KEY)).as_numpy("OUTPUT0").tolist() == [[1.0]]
            with pytest.raises(InferenceServerException, match="needs a key"):
                triton.infer("m", [tensor])


async def test_the_application_takes_the_access_object(server: Server, file: AccessFile) -> None:
    with asgi_app(server, access=file.access) as app:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as web:
            assert (await web.get("/v2/health/ready")).status_code == 200
            refused = await web.get("/v2/models/m")
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, 'Bearer realm="repoagent"')
            assert (await web.get("/v2/models/m", headers=KEY)).status_code == 200
            twice = [*KEY.items(), ("authorization", "Bearer a-key")]
            assert (await web.get("/v2/models/m", headers=twice)).status_code == 401
