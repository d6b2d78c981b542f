"""A stock Triton of the wheel ``nvidia-pytriton``, which needs no GPU, and models for it."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

START_SECONDS: Final = 90
MODEL: Final = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        given = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", -array)]) for array in given]
"""
_TENSORS: Final = (
    'backend: "python"\ninput { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }\n'
    'output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }\ninstance_group { count: 1 kind: KIND_CPU }\n'
)


class Failed(Exception):
    """Something is not as it must be."""


def expect(what: str, is_so: bool, details: object = "") -> None:
    """Print ``what``, or end with it."""
    if not is_so:
        raise Failed(f"NOT SO: {what}\n{details}")
    print(f"ok: {what}", flush=True)


def write_model(path: Path, agents: Mapping[str, Mapping[str, str]], files: Mapping[str, bytes]) -> None:
    """A model that negates four floats, which passes ``agents``: each with its parameters."""
    entries = []
    for name, parameters in agents.items():
        pairs = " ".join(f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in parameters.items())
        entries.append(f'{{ name: "{name}" {pairs} }}')
    chain = f"model_repository_agents {{ agents [ {', '.join(entries)} ] }}\n" if entries else ""
    (path / "1").mkdir(parents=True)
    (path / "config.pbtxt").write_text(_TENSORS + chain)
    for name, content in files.items():
        (path / "1" / name).write_bytes(content)


class Stock:
    """The files of the wheel in a virtual environment."""

    def __init__(self, environment: Path) -> None:
        site = next(iter(environment.glob("lib/python3*/site-packages")), environment)
        self.home = site / "pytriton" / "tritonserver"
        if not self.home.is_dir():
            raise SystemExit(f"no Triton in {environment}: make {environment}/.installed installs one")
        self.libraries = site / "nvidia_pytriton.libs"
        self.library = next(self.libraries.glob("libtritonserver-*.so"))
        self.version = next(site.glob("nvidia_pytriton-*.dist-info")).name.split("-")[1].removesuffix(".dist")
        self._bin = environment / "bin"
        self._stub = self.home / "python_backend_stubs" / site.parent.name.removeprefix("python")

    def backends(self, directory: Path) -> Path:
        """A directory of backends with that for Python."""
        shutil.copytree(self.home / "backends", directory)
        shutil.copy(self._stub / "triton_python_backend_stub", directory / "python")
        return directory

    def variables(self, **more: str) -> dict[str, str]:
        """The environment of a process that uses the wheel's libraries."""
        path = f"{self._bin}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "LD_LIBRARY_PATH": str(self.libraries), "PATH": path, "CUDA_VISIBLE_DEVICES": "", **more}


class Triton:
    """A server that runs."""

    def __init__(self, process: Any, log: Path, ports: Sequence[int]) -> None:
        self._process = process
        self._log = log
        self._url = f"http://127.0.0.1:{ports[0]}/v2"
        self.grpc = f"127.0.0.1:{ports[1]}"
        self._metrics = f"http://127.0.0.1:{ports[2]}/metrics"

    @property
    def log(self) -> str:
        """All that it logged."""
        return self._log.read_text(errors="replace")

    def call(self, path: str, body: object = None) -> tuple[int, str]:
        """Status and body of an answer."""
        data = json.dumps({} if body is None else body).encode()
        request = urllib.request.Request(f"{self._url}/{path}", data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def get(self, path: str) -> str:
        """A document."""
        with urllib.request.urlopen(f"{self._url}/{path}", timeout=60) as answer:
            return str(answer.read().decode())

    def load(self, model: str, **parameters: str) -> tuple[int, str]:
        """Have a model loaded."""
        return self.call(f"repository/models/{model}/load", {"parameters": parameters})

    def metrics(self) -> str:
        """The page of metrics."""
        with urllib.request.urlopen(self._metrics, timeout=60) as answer:
            return str(answer.read().decode())

    def infers(self, model: str) -> bool:
        """Whether the model negates."""
        given = {"name": "IN", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}
        status, text = self.call(f"models/{model}/infer", {"inputs": [given]})
        return status == 200 and json.loads(text)["outputs"][0]["data"] == [-1, -2, -3, -4]

    def wait_until_ready(self) -> None:
        """Until it answers."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise Failed(f"the server ended with {self._process.returncode}:\n{self.log[-4000:]}")
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self._url}/health/ready", timeout=5).close()
                return
            time.sleep(0.1)
        raise Failed(f"the server is not ready after {START_SECONDS} s:\n{self.log[-4000:]}")

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def end(self, number: signal.Signals) -> int:
        """Send a signal and wait; the exit code."""
        self._process.send_signal(number)
        code: int = self._process.wait(60)
        return code


@contextmanager
def running(
    command: list[str], log: Path, variables: Mapping[str, str], start: Callable[..., Any] = subprocess.Popen
) -> Iterator[Triton]:
    """``tritonserver`` with three ports; whatever is left of its processes at the end is killed.

    ``start`` takes the command and where it writes, as ``subprocess.Popen`` does.
    """
    with contextlib.ExitStack() as sockets:
        taken = [sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        ports = [one.getsockname()[1] for one in taken]
    for protocol, port in zip(("http", "grpc", "metrics"), ports, strict=True):
        command = [*command, f"--{protocol}-address", "127.0.0.1", f"--{protocol}-port", str(port)]
    with log.open("ab") as output:
        session = {"start_new_session": True} if start is subprocess.Popen else {}
        process = start(command, stdout=output, stderr=output, env=variables, **session)
    server = Triton(process, log, ports)
    try:
        server.wait_until_ready()
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()
