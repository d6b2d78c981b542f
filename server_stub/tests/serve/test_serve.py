"""``repoagent serve`` as users run it: a process of its own, real models, Triton's client, signals."""

import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from server_stub.tests.serve.conftest import PROGRAM

if TYPE_CHECKING:
    from .conftest import Server, World


@pytest.fixture(scope="module", autouse=True)
def models(world: "World") -> None:
    """Beside ``plain``, which negates."""
    world.model("absolute", operation="Abs")


def _tensor(values: list[float]) -> Any:
    array = np.array([values], np.float32)
    tensor = triton.InferInput("X", array.shape, "FP32")
    tensor.set_data_from_numpy(array)
    return tensor


def _infer(client: Any, model: str) -> list[float]:
    result: list[float] = client.infer(model, [_tensor([1, -2, 3, -4])]).as_numpy("Y")[0].tolist()
    return result


def test_models_are_served_until_a_signal_and_unloaded_then(world: "World") -> None:
    flags = ("--allow-metrics=true", "--metrics-port=0", "--processes=1")
    server: Server = world.start(*flags, program=PROGRAM).wait_ready()
    with server.triton() as client:
        assert client.is_server_ready()
        assert _infer(client, "plain") == [-1, 2, -3, 4]
        assert _infer(client, "absolute") == [1, 2, 3, 4]
        assert client.get_inference_statistics("plain")["model_stats"][0]["inference_count"] == 1
        with pytest.raises(InferenceServerException, match="not allowed if polling is enabled") as error:
            client.load_model("plain")
        assert error.value.status() == "503"
    metrics = httpx.get(f"http://127.0.0.1:{server.port('metrics')}/metrics").text
    assert 'nv_inference_request_success{model="plain",version="1"} 1\n' in metrics
    assert 'repoagent_loads_total{model="plain"} 1\n' in metrics
    assert server.stop() == 0
    assert "| plain    | 1       | READY  |" in server.log
    assert "Signal (15) received." in server.log
    assert "successfully unloaded 'plain'" in server.log


def test_models_come_and_go_by_request(world: "World") -> None:
    server: Server = world.serve("--load-model=plain")
    with server.triton() as client:
        assert not client.is_model_ready("absolute")
        client.load_model("absolute")
        assert _infer(client, "absolute") == [1, 2, 3, 4]
        client.unload_model("absolute")
        states = {entry["name"]: entry.get("state") for entry in client.get_model_repository_index()}
        assert states == {"plain": "READY", "absolute": "UNAVAILABLE"}
        with pytest.raises(InferenceServerException, match=r"allow-load-parameters") as error:
            client.load_model("absolute", config="{}")
        assert error.value.status() == "501"
        with pytest.raises(
            InferenceServerException, match="failed to load 'nosuch', failed to poll from model repository"
        ):
            client.load_model("nosuch")
    assert server.stop(signal.SIGINT) == 0


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("flag", ["--http-port", "--grpc-port", "--metrics-port"])
def test_a_port_that_is_taken_ends_the_start_before_any_model_is_loaded(
    world: "World", flag: str, processes: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = ["--allow-metrics=true", "--metrics-port=0", "--grpc-port=0", f"{flag}={port}"]
        server: Server = world.start(*ports, f"--processes={processes}")
        assert server.ended() == 1
    last = server.log.splitlines()[-1]
    assert f"127.0.0.1:{port}" in last
    assert last.endswith(f"({flag})")
    assert last.startswith("error: creating server: Unavailable - ")
    assert "loading:" not in server.log
    assert "Traceback" not in server.log


def test_a_cache_directory_that_cannot_be_used_ends_the_start_before_any_model_is_loaded(
    world: "World", tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    server: Server = world.start(f"--cache-directory={tmp_path / 'file'}")
    assert server.ended() == 1
    last = server.log.splitlines()[-1]
    assert last.startswith(f"error: creating server: Invalid argument - the cache directory {tmp_path / 'file'} is not")
    assert "loading:" not in server.log
    assert "Traceback" not in server.log


def test_what_runs_at_the_signal_is_finished(world: "World", tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    model = tmp_path / "models" / "waits" / "1" / "model.py"
    model.parent.mkdir(parents=True)
    model.write_text(
        "import triton_python_backend_utils as pb_utils\n"
        "class TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        f"        open({str(gate)!r}).read()\n"
        "        tensor = pb_utils.get_input_tensor_by_name(requests[0], 'X')\n"
        "        return [pb_utils.InferenceResponse([pb_utils.Tensor('Y', tensor.as_numpy())])]\n"
    )
    (model.parents[1] / "config.pbtxt").write_text(
        'name: "waits" backend: "python" input { name: "X" data_type: TYPE_FP32 dims: [1, 4] } '
        'output { name: "Y" data_type: TYPE_FP32 dims: [1, 4] }'
    )
    server: Server = world.start(repository=str(tmp_path / "models")).wait_ready()
    with server.triton() as client:
        assert client.is_server_live()
        running = client.async_infer("waits", [_tensor([1, 2, 3, 4])])
        with gate.open("w"):  # blocks until the model reads
            server.process.send_signal(signal.SIGTERM)
            server.until(lambda: "Waiting for in-flight requests to complete" in server.log, "the signal")
        assert running.get_result().as_numpy("Y").tolist() == [[1, 2, 3, 4]]
    assert server.ended() == 0


# These leave a model that no server may load.


def test_a_model_with_a_missing_agent_stops_the_start_or_only_itself(world: "World") -> None:
    world.model("guarded", [("checksun", {})])
    failed: Server = world.start()
    assert failed.ended() == 1
    server: Server = world.start("--exit-on-error=false", "--strict-readiness=false").wait_ready()
    with server.triton() as client:
        assert client.is_server_ready()
        assert _infer(client, "plain") == [-1, 2, -3, 4]
        assert not client.is_model_ready("guarded")
        reasons = {entry["name"]: entry.get("reason", "") for entry in client.get_model_repository_index()}
    assert "agent 'checksun'" in reasons["guarded"]
    assert "did you mean 'checksum'" in reasons["guarded"]
    assert server.stop() == 0
    assert "error: creating server: Internal - failed to load all models" in failed.log


def test_a_third_signal_ends_it_at_once(world: "World") -> None:
    gate = world.gate()
    world.agent("waits")
    world.model("held", [("waits", {"block": f"LOAD {gate.port}"})])
    server: Server = world.start()
    gate.reached()  # the load is under way
    for count in (1, 2):
        server.process.send_signal(signal.SIGTERM)
        server.until(lambda: server.log.count("received") >= count, "the signal")  # noqa: B023
    server.process.send_signal(signal.SIGTERM)
    assert server.ended() == 1
