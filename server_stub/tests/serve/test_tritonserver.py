"""The program ``tritonserver``, and the endpoints for hosting platforms, as processes."""

import json
import sys
from typing import TYPE_CHECKING, Any, Final

import httpx

from . import conftest

if TYPE_CHECKING:
    import pytest

    from .conftest import World

#: The stock arguments of KServe's runtime for Triton, but for its ports, which a test must not take.
KSERVE: Final = ("--grpc-port=0", "--http-port=0", "--allow-grpc=true", "--allow-http=true")
LOOPBACK: Final = {"REPOAGENT_SERVE_HTTP_ADDRESS": "127.0.0.1", "REPOAGENT_SERVE_GRPC_ADDRESS": "127.0.0.1"}
PROGRAM: Final = [sys.executable, "-c", "from repoagent_server.program.tritonserver import main; main()"]
ASKED: Final = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [-1, 2, -3, 4]}]}


def _port(server: Any, name: str) -> int:
    server.until(server._ready.exists, "the ready file")
    return int(json.loads(server._ready.read_text())[name]["port"])


def test_the_stock_arguments_of_kserve_start_it(world: "World", monkeypatch: "pytest.MonkeyPatch") -> None:
    monkeypatch.setattr(conftest, "PROGRAM", PROGRAM)
    server = world.start(*KSERVE, "--pinned-memory-pool-byte-size=1", env=LOOPBACK).wait_ready()
    assert server.answer("plain") == [1, -2, 3, -4]
    assert server.port("grpc") > 0
    warning = next(line for line in server.log.splitlines() if "--pinned-memory-pool-byte-size has no effect" in line)
    assert warning.startswith("W")
    assert server.stop() == 0


def test_sagemaker_pings_and_invokes_the_only_model(world: "World") -> None:
    flags = ("--load-model=plain", "--allow-http=false", "--allow-grpc=false", "--allow-metrics=false")
    server = world.start("--model-control-mode=explicit", *flags, "--allow-sagemaker", "--sagemaker-port=0")
    with httpx.Client(base_url=f"http://127.0.0.1:{_port(server, 'sagemaker')}") as client:
        assert client.get("/ping").status_code == 200
        assert client.post("/invocations", json=ASKED).json()["outputs"][0]["data"] == [1, -2, 3, -4]
        assert client.post("/v2/repository/models/plain/unload").status_code == 400
    assert "Started Sagemaker HTTPService at 127.0.0.1:" in server.log
    assert server.stop() == 0


def test_vertex_ai_reaches_the_model_and_the_api_behind_the_header(world: "World") -> None:
    routes = {"AIP_HEALTH_ROUTE": "/health", "AIP_PREDICT_ROUTE": "/predict"}
    server = world.start(
        "--model-control-mode=explicit", "--load-model=plain", "--allow-vertex-ai", "--vertex-ai-port=0", env=routes
    )
    with httpx.Client(base_url=f"http://127.0.0.1:{_port(server, 'vertex-ai')}") as client:
        assert client.get("/health").status_code == 200
        assert client.post("/predict", json=ASKED).json()["outputs"][0]["data"] == [1, -2, 3, -4]
        index = client.post("/predict", headers={"X-Vertex-Ai-Triton-Redirect": "v2/repository/index"})
        assert "plain" in {entry["name"] for entry in index.json()}
    assert server.stop() == 0


def test_a_default_model_that_cannot_be_found_stops_the_start(world: "World") -> None:
    server = world.start("--model-control-mode=explicit", "--allow-sagemaker", "--sagemaker-port=0")
    assert server.ended() == 1
    assert "0 are loaded. Name one with SAGEMAKER_TRITON_DEFAULT_MODEL_NAME" in server.log
    routes = {"AIP_HEALTH_ROUTE": "/health", "AIP_PREDICT_ROUTE": "/predict"}
    flags = ("--allow-vertex-ai", "--vertex-ai-port=0", "--vertex-ai-default-model=nosuch")
    server = world.start("--model-control-mode=explicit", "--load-model=plain", *flags, env=routes)
    assert server.ended() == 1
    assert "error: creating server: Invalid argument - Expect the default model 'nosuch' is loaded" in server.log
