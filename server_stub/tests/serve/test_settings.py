"""Log, traces, restrictions and forwarding in a real child process, by its flags and NVIDIA's clients."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc as triton
import tritonclient.http
from tritonclient.utils import InferenceServerException

from server_stub.tests.serve.conftest import PROCESSES

if TYPE_CHECKING:
    from .conftest import World

SECRET: Final = "s3cret"
HTTP_KEY: Final = {"admin-key": SECRET}
GRPC_KEY: Final = {"triton-grpc-protocol-admin-key": SECRET}
PARTS: Final = "trace,logging,model-repository"
LOG: Final = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 1,
    "log_format": "default",
}


@pytest.fixture(scope="module")
def served(world: Any) -> Any:
    world.model("m")
    return world.start(
        "--model-control-mode=explicit",
        "--load-model=m",
        "--log-verbose=1",
        f"--http-restricted-api={PARTS}:admin-key={SECRET}",
        f"--grpc-restricted-protocol={PARTS}:admin-key={SECRET}",
        "--http-header-forward-pattern=^x-",
        "--grpc-header-forward-pattern=^x-",
        f"--trace-config=triton,file={world.root / 'traces.json'}",
    ).wait_ready()


@pytest.fixture(scope="module")
def http(served: Any) -> Iterator[Any]:
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{served.port('http')}") as client:
        yield client


@pytest.fixture(scope="module")
def grpc(served: Any) -> Iterator[Any]:
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{served.port('grpc')}") as client:
        yield client


def ask(library: Any, client: Any, **more: Any) -> list[float]:
    tensor = library.InferInput("X", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.array([[-1, 2, -3, 4]], np.float32))
    values: list[float] = client.infer("m", [tensor], **more).as_numpy("Y")[0].tolist()
    return values


def test_what_is_not_restricted_is_open(http: Any, grpc: Any) -> None:
    answer = ask(tritonclient.http, http, headers={"x-tenant": "a"})
    assert answer == ask(tritonclient.grpc, grpc, headers={"x-tenant": "a"}) == [1.0, -2.0, 3.0, -4.0]


def test_what_is_restricted_needs_the_header(http: Any, grpc: Any) -> None:
    for refused in (
        http.get_log_settings,
        http.get_trace_settings,
        lambda: http.load_model("m"),
        lambda: http.get_log_settings(headers={"admin-key": "guess"}),
        grpc.get_log_settings,
        grpc.get_trace_settings,
        lambda: grpc.load_model("m"),
        lambda: grpc.get_log_settings(headers=HTTP_KEY),
    ):
        with pytest.raises(InferenceServerException, match="is restricted, expecting header") as raised:
            refused()
        assert SECRET not in str(raised.value)
    assert http.get_log_settings(headers=HTTP_KEY) == LOG
    assert grpc.get_log_settings(headers=GRPC_KEY, as_json=True)["settings"]["log_info"] == {"bool_param": True}


def test_the_log_changes_while_the_server_runs(served: Any, http: Any, grpc: Any) -> None:
    def lines_of_a_reload() -> list[str]:
        before = len(served.log)
        http.unload_model("m", headers=HTTP_KEY)
        http.load_model("m", headers=HTTP_KEY)
        return [line for line in served.log[before:].splitlines() if "successfully loaded" in line]

    assert lines_of_a_reload()[0].startswith("I")
    grpc.update_log_settings({"log_info": False, "log_verbose_level": 0}, headers=GRPC_KEY)
    assert lines_of_a_reload() == []
    http.update_log_settings({"log_info": True, "log_format": "json"}, headers=HTTP_KEY)
    assert json.loads(lines_of_a_reload()[0])["level"] == "INFO"
    http.update_log_settings({name: LOG[name] for name in LOG if name != "log_file"}, headers=HTTP_KEY)
    assert http.get_log_settings(headers=HTTP_KEY) == LOG  # The other tests of this server find it as it was.
    assert SECRET not in served.log


@pytest.mark.skipif(bool(PROCESSES), reason="each worker writes its own trace file: see test_processes.py")
def test_a_model_is_traced_when_a_client_says_so(world: Any, http: Any, grpc: Any) -> None:
    changes = {"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "log_frequency": "1"}
    changed = grpc.update_trace_settings("m", changes, headers=GRPC_KEY, as_json=True)
    assert changed["settings"]["trace_level"] == {"value": ["TIMESTAMPS"]}
    assert http.get_trace_settings("m", headers=HTTP_KEY)["trace_rate"] == "1"
    assert http.get_trace_settings(headers=HTTP_KEY)["trace_level"] == ["OFF"]
    ask(tritonclient.http, http)
    http.update_trace_settings("m", dict.fromkeys(changes), headers=HTTP_KEY)
    ask(tritonclient.http, http)
    records = json.loads((world.root / "traces.json.0").read_text())
    assert [record["model_name"] for record in records if "model_name" in record] == ["m"]
    assert not (world.root / "traces.json.1").exists()


# Command lines written for Triton start a real server.


def _places(world: Any, server: Any) -> dict[str, Any]:
    ready: Path = world.root / f"ready-{world.servers.index(server)}.json"
    server.until(ready.exists, "the ready file")
    places: dict[str, Any] = json.loads(ready.read_text())
    return places


def test_what_has_no_effect_is_said_in_the_log(world: Any) -> None:
    server = world.serve(
        "--load-model=plain",
        "--strict-model-config=false",
        "--pinned-memory-pool-byte-size=268435456",
        "--cuda-memory-pool-byte-size=0:67108864",
        "--cuda-memory-pool-byte-size=1:67108864",
        "--backend-directory=/opt/tritonserver/backends",
        "--allow-gpu-metrics=false",
        "--allow-metrics=true",
        "--allow-cpu-metrics=false",
        "--metrics-config=counter_latencies=false",
        "--metrics-port=0",
    )
    assert server.answer("plain") == [1, -2, 3, -4]
    place = _places(world, server)["metrics"]
    names = {
        line.split("{")[0] for line in httpx.get(f"http://{place['address']}:{place['port']}/metrics").text.splitlines()
    }
    assert "nv_inference_request_success" in names
    assert not [name for name in names if name.endswith("_duration_us") or name.startswith("nv_cpu")]
    assert server.stop() == 0
    notes = [line for line in server.log.splitlines() if " has no effect: " in line]
    assert [line.startswith("W") for line in notes] == [True] * 4
    assert "--pinned-memory-pool-byte-size has no effect: there is no pool of pinned memory" in server.log
    (deprecated,) = [line for line in server.log.splitlines() if "'--strict-model-config' has been deprecated!" in line]
    assert deprecated.startswith("W")


def test_a_file_and_the_environment_start_a_server_and_no_value_of_theirs_is_in_the_log(world: Any) -> None:
    file = world.root / "serve.toml"
    file.write_text(
        'server-id = "from-file"\nmodel-control-mode = "explicit"\nbackend-config = "python,token=hunter2"\n'
    )
    server = world.start(
        f"--config-file={file}",
        "--log-verbose=1",
        env={"REPOAGENT_SERVE_LOAD_MODEL": "plain", "REPOAGENT_SERVE_ID": "hunter3"},
    ).wait_ready()
    assert server.http.get("/v2").json()["name"] == "from-file"
    assert server.answer("plain") == [1, -2, 3, -4]
    assert server.stop() == 0
    assert "environment variable REPOAGENT_SERVE_ID belongs to no flag" in server.log
    assert "hunter" not in server.log


def test_without_http_there_is_grpc_alone(world: Any) -> None:
    server = world.start("--allow-http=false")
    places = _places(world, server)
    assert set(places) == {"pid", "grpc"}
    with triton.InferenceServerClient(f"{places['grpc']['address']}:{places['grpc']['port']}") as client:
        assert client.is_model_ready("plain")
    assert server.stop() == 0


def test_what_is_not_here_is_refused_before_anything_is_loaded(world: Any) -> None:
    server = world.start("--allow-vertex-ai=true")
    assert server.ended() == 2
    assert "Error: --allow-vertex-ai: AIP_HEALTH_ROUTE is not defined for Vertex AI endpoint" in server.log


# The program ``tritonserver``, and the endpoints for hosting platforms, as processes.

#: The stock arguments of KServe's runtime for Triton, but for its ports, which a test must not take.
KSERVE: Final = ("--grpc-port=0", "--http-port=0", "--allow-grpc=true", "--allow-http=true")
LOOPBACK: Final = {"REPOAGENT_SERVE_HTTP_ADDRESS": "127.0.0.1", "REPOAGENT_SERVE_GRPC_ADDRESS": "127.0.0.1"}
PROGRAM: Final = [sys.executable, "-c", "from repoagent_server.program.tritonserver import main; main()"]
ASKED: Final = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [-1, 2, -3, 4]}]}


def _port(server: Any, name: str) -> int:
    server.until(server.ready.exists, "the ready file")
    return int(json.loads(server.ready.read_text())[name]["port"])


def test_the_stock_arguments_of_kserve_start_it(world: "World") -> None:
    server = world.start(*KSERVE, "--pinned-memory-pool-byte-size=1", env=LOOPBACK, program=PROGRAM).wait_ready()
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
