"""``repoagent serve`` as users run it: a process of its own, real models, Triton's client."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import pytest
import tritonclient.http as triton
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow


@dataclass
class Server:
    """A running server. ``log`` grows as it writes."""

    process: subprocess.Popen[str]
    log: list[str] = field(default_factory=list)
    addresses: dict[str, Any] = field(default_factory=dict)
    _served: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    @property
    def http(self) -> str:
        return f"{self.addresses['http']['address']}:{self.addresses['http']['port']}"

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if "Started Metrics Service" in line:
                self._served.set()
        self._served.set()

    def wait_until_served(self, ready: Path) -> None:
        """Return once the ready file is there: it is written right after the last line of the start."""
        assert self._served.wait(60)
        assert self.process.stdin is not None
        while not ready.exists():
            assert self.process.poll() is None, "".join(self.log)
        self.addresses = json.loads(ready.read_text())

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send the signal and return the exit status, with the log complete."""
        self.process.send_signal(number)
        status = self.process.wait(60)
        self.reader.join()
        return status

    @property
    def text(self) -> str:
        return "".join(self.log)


Serve = Callable[..., Server]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start ``repoagent serve`` with these flags on free ports; ``wait=False`` returns at once."""
    servers: list[Server] = []

    def serve(*flags: str, wait: bool = True) -> Server:
        ready = tmp_path / f"ready-{len(servers)}.json"
        command = [sys.executable, "-c", "from repoagent.cli.main import main; main()", "serve"]
        command += ["--http-port=0", "--metrics-port=0", f"--ready-file={ready}"]
        command += [f"--workspace-directory={tmp_path / 'work'}", f"--cache-directory={tmp_path / 'cache'}", *flags]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
        server = Server(process)
        servers.append(server)
        if wait:
            server.wait_until_served(ready)
        return server

    yield serve
    for server in servers:
        server.process.kill()
        server.process.wait()
        server.reader.join()
        for pipe in (server.process.stderr, server.process.stdin):
            assert pipe is not None
            pipe.close()


def _write(repository: Path, name: str, operation: str = "Neg", config: str = "") -> None:
    graph = helper.make_graph(
        [helper.make_node(operation, ["X"], ["Y"])],
        name,
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [1, 4])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    file = repository / name / "1" / "model.onnx"
    file.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(file))
    (repository / name / "config.pbtxt").write_text(f'name: "{name}"\nbackend: "onnxruntime"\n{config}')


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "models"
    _write(path, "negate")
    _write(path, "absolute", "Abs")
    return path


def _tensor(values: list[float]) -> Any:
    array = np.array([values], np.float32)
    tensor = triton.InferInput("X", array.shape, "FP32")
    tensor.set_data_from_numpy(array)
    return tensor


def _infer(client: Any, model: str) -> list[float]:
    result: list[float] = client.infer(model, [_tensor([1, -2, 3, -4])]).as_numpy("Y")[0].tolist()
    return result


def test_models_are_served_until_a_signal_and_unloaded_then(serve: Serve, repository: Path) -> None:
    server = serve(f"--model-repository={repository}")
    with triton.InferenceServerClient(server.http) as client:
        assert client.is_server_ready()
        assert _infer(client, "negate") == [-1, 2, -3, 4]
        assert _infer(client, "absolute") == [1, 2, 3, 4]
        assert client.get_inference_statistics("negate")["model_stats"][0]["inference_count"] == 1
        with pytest.raises(InferenceServerException, match="not allowed if polling is enabled") as error:
            client.load_model("negate")
        assert error.value.status() == "503"
    metrics = httpx.get(f"http://127.0.0.1:{server.addresses['metrics']['port']}/metrics").text
    assert 'nv_inference_request_success{model="negate",version="1"} 1\n' in metrics
    assert 'repoagent_loads_total{model="negate"} 1\n' in metrics
    assert server.stop() == 0
    assert "| negate   | 1       | READY  |" in server.text
    assert "Signal (15) received." in server.text
    assert "successfully unloaded 'negate'" in server.text


def test_models_come_and_go_by_request(serve: Serve, repository: Path) -> None:
    server = serve(f"--model-repository={repository}", "--model-control-mode=explicit", "--load-model=negate")
    with triton.InferenceServerClient(server.http) as client:
        assert not client.is_model_ready("absolute")
        client.load_model("absolute")
        assert _infer(client, "absolute") == [1, 2, 3, 4]
        client.unload_model("absolute")
        states = {entry["name"]: entry.get("state") for entry in client.get_model_repository_index()}
        assert states == {"negate": "READY", "absolute": "UNAVAILABLE"}
        with pytest.raises(InferenceServerException, match=r"allow-load-parameters") as error:
            client.load_model("absolute", config="{}")
        assert error.value.status() == "501"
        with pytest.raises(
            InferenceServerException, match="failed to load 'nosuch', failed to poll from model repository"
        ):
            client.load_model("nosuch")
    assert server.stop(signal.SIGINT) == 0


def test_a_model_with_a_missing_agent_stops_the_start_or_only_itself(serve: Serve, repository: Path) -> None:
    agents = 'model_repository_agents { agents [ { name: "checksun" } ] }'
    _write(repository, "guarded", config=agents)
    failed = serve(f"--model-repository={repository}", wait=False)
    assert failed.process.wait(60) == 1
    failed.reader.join()
    server = serve(f"--model-repository={repository}", "--exit-on-error=false", "--strict-readiness=false")
    with triton.InferenceServerClient(server.http) as client:
        assert client.is_server_ready()
        assert _infer(client, "negate") == [-1, 2, -3, 4]
        assert not client.is_model_ready("guarded")
        reasons = {entry["name"]: entry.get("reason", "") for entry in client.get_model_repository_index()}
    assert "agent 'checksun'" in reasons["guarded"]
    assert "did you mean 'checksum'" in reasons["guarded"]
    assert server.stop() == 0
    assert "error: creating server: Internal - failed to load all models" in failed.text


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("flag", ["--http-port", "--grpc-port", "--metrics-port"])
def test_a_port_that_is_taken_ends_the_start_before_any_model_is_loaded(
    serve: Serve, repository: Path, flag: str, processes: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = serve(f"--model-repository={repository}", f"{flag}={port}", f"--processes={processes}", wait=False)
        assert server.process.wait(60) == 1
        server.reader.join()
    last = server.text.splitlines()[-1]
    assert f"127.0.0.1:{port}" in last
    assert last.endswith(f"({flag})")
    assert server.text.splitlines()[-1].startswith("error: creating server: Unavailable - ")
    assert "loading:" not in server.text
    assert "Traceback" not in server.text


def test_a_cache_directory_that_cannot_be_used_ends_the_start_before_any_model_is_loaded(
    serve: Serve, repository: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    server = serve(f"--model-repository={repository}", f"--cache-directory={tmp_path / 'file'}", wait=False)
    assert server.process.wait(60) == 1
    server.reader.join()
    last = server.text.splitlines()[-1]
    assert last.startswith(f"error: creating server: Invalid argument - the cache directory {tmp_path / 'file'} is not")
    assert "loading:" not in server.text
    assert "Traceback" not in server.text


def test_what_runs_at_the_signal_is_finished(serve: Serve, tmp_path: Path) -> None:
    repository = tmp_path / "models"
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    model = repository / "waits" / "1" / "model.py"
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
    server = serve(f"--model-repository={repository}")
    with triton.InferenceServerClient(server.http, concurrency=2) as client:
        assert client.is_server_live()
        running = client.async_infer("waits", [_tensor([1, 2, 3, 4])])
        with gate.open("w"):  # blocks until the model reads
            server.process.send_signal(signal.SIGTERM)
            while "Waiting for in-flight requests to complete" not in server.text:
                assert server.process.poll() is None
        assert running.get_result().as_numpy("Y").tolist() == [[1, 2, 3, 4]]
    assert server.process.wait(60) == 0


def test_a_third_signal_ends_it_at_once(serve: Serve, tmp_path: Path) -> None:
    repository = tmp_path / "models"
    agent = tmp_path / "agents" / "waits" / "agent.py"
    agent.parent.mkdir(parents=True)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    agent.write_text(
        "from repoagent.api import Agent\n"
        "class Waits(Agent):\n"
        "    api_version = 1\n"
        "    def load(self, model):\n"
        f"        open({str(gate)!r}).read()\n"
    )
    _write(repository, "held", config='model_repository_agents { agents [ { name: "waits" } ] }')
    server = serve(f"--model-repository={repository}", f"--repoagent-directory={agent.parents[1]}", wait=False)
    with gate.open("w"):  # blocks until the agent reads: the load is under way
        server.process.send_signal(signal.SIGTERM)
        while "Signal (15) received" not in server.text:
            assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        while server.text.count("received") < 2:
            assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 1
