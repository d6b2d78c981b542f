"""Command lines written for Triton start a real server."""

import json
from pathlib import Path
from typing import Any

import httpx
import tritonclient.grpc as triton


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
