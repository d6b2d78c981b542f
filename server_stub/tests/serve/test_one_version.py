"""One version of a model is loaded and unloaded in a running server, while requests go to another one."""

import json
import shutil
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx
import tritonclient.grpc as triton_grpc
from tritonclient.grpc import service_pb2

if TYPE_CHECKING:
    from .conftest import Server, World

InBackground = Callable[[Callable[[], Any]], Callable[[], Any]]

_TENSOR = {"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}


def _answer(server: "Server", path: str) -> httpx.Response:
    return server.http.post(f"/v2/models/m{path}/infer", content=json.dumps({"inputs": [_TENSOR]}))


def _versions(server: "Server") -> dict[str, str]:
    index = server.http.post("/v2/repository/index").json()
    return {entry["version"]: entry["state"] for entry in index if entry["name"] == "m"}


def test_a_version_comes_and_goes_while_another_one_answers(world: "World", in_background: InBackground) -> None:
    agent = world.agent("guard")
    directory = world.model("m", [(agent, {})])
    shutil.copytree(directory / "1", directory / "2")
    server = world.serve("--load-model=m", "--allow-grpc=true")
    assert _versions(server) == {"2": "READY"}
    ended = threading.Event()

    def ask() -> set[int]:
        statuses: set[int] = set()
        while not ended.is_set():
            statuses.add(_answer(server, "/versions/2").status_code)
        return statuses

    asking = in_background(ask)
    before = len(world.calls("m"))
    assert server.http.post("/v2/repository/models/m/versions/1/load").status_code == 200
    assert _versions(server) == {"1": "READY", "2": "READY"}
    assert _answer(server, "/versions/1").json()["outputs"][0]["data"] == [-1, -2, -3, -4]
    actions = [line.partition(" ")[2] for line in world.calls("m")[before:]]
    assert [action for action in actions if action.isupper()] == ["LOAD", "UNLOAD", "LOAD_COMPLETE", "UNLOAD_COMPLETE"]
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.port('grpc')}") as client:
        unload = service_pb2.RepositoryModelUnloadRequest(model_name="m")
        unload.parameters["version"].int64_param = 1
        before = len(world.calls("m"))
        client._client_stub.RepositoryModelUnload(unload)
        assert len(world.calls("m")) == before
    assert _versions(server) == {"1": "UNAVAILABLE", "2": "READY"}
    assert _answer(server, "/versions/1").status_code == 503
    assert server.http.get("/v2/health/ready").status_code == 200
    missing = server.http.post("/v2/repository/models/m/versions/7/load")
    assert (missing.status_code, "there is no such version directory" in missing.text) == (400, True)
    ended.set()
    assert asking() == {200}
    assert server.http.post("/v2/repository/models/m/versions/2/unload").status_code == 200
    assert set(_versions(server).values()) == {"UNAVAILABLE"}
    assert [line for line in world.calls("m") if line.endswith(" UNLOAD_COMPLETE")]
    assert server.stop() == 0
