"""The servers that bench_table.py compares: each in a session of its own, on free ports, over the same model."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

__all__ = [
    "START_SECONDS",
    "Missing",
    "NotStarted",
    "Server",
    "check",
    "end_with_servers",
    "free_ports",
    "mlserver",
    "output",
    "repoagent",
    "running",
    "triton",
    "wait_until_ready",
    "write_model",
]

HERE = Path(__file__).parent
START_SECONDS = 120.0
READY = "/v2/models/identity/ready"
IDENTITY = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        given = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]) for array in given]
"""
CONFIG = """name: "identity"
backend: "python"
input { name: "INPUT0" data_type: TYPE_FP32 dims: [16] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [16] }
instance_group { count: 1 kind: KIND_CPU }
"""


class Missing(Exception):
    """A peer is not installed; the text is how to get it."""


class NotStarted(SystemExit):
    """A server ended before it was ready, or took too long; the text is the end of its log."""


@dataclass(frozen=True, slots=True)
class Server:
    """One that is ready."""

    name: str
    version: str
    http: int
    grpc: int
    session: int
    """All its processes are in this one."""


def write_model(repository: Path) -> None:
    """A Python model that returns its 16 numbers."""
    (repository / "identity" / "1").mkdir(parents=True)
    (repository / "identity" / "1" / "model.py").write_text(IDENTITY)
    (repository / "identity" / "config.pbtxt").write_text(CONFIG)


@contextmanager
def repoagent(name: str, folder: Path, flags: Sequence[str] = ()) -> Iterator[Server]:
    """This project, as it is installed here, over ``folder/models``."""
    ready = folder / "ready.json"
    program = "from repoagent.cli.main import main; main()"
    command = [sys.executable, "-c", program, "serve", "--model-repository", str(folder / "models")]
    command += ["--http-port=0", "--grpc-port=0", "--metrics-port=0", f"--ready-file={ready}"]
    command += ["--workspace-directory", str(folder / "workspace"), *flags]
    with running(command, folder / "log") as process:
        deadline = time.monotonic() + START_SECONDS
        while not ready.exists():
            check(process, folder / "log", deadline)
        document = json.loads(ready.read_text())
        ports = {protocol: int(document[protocol]["port"]) for protocol in ("http", "grpc")}
        revision = output(["git", "-C", str(HERE), "describe", "--always", "--dirty"]).strip() or "unknown"
        yield Server(name, f"repoagent {revision}", ports["http"], ports["grpc"], process.pid)


@contextmanager
def triton(name: str, folder: Path, environment: Path) -> Iterator[Server]:
    """The stock server in the wheel nvidia-pytriton, installed in ``environment``, over ``folder/models``.

    It needs no GPU.
    """
    site = next(environment.glob("lib/python3*/site-packages"), environment)
    home = site / "pytriton" / "tritonserver"
    if not home.is_dir():
        raise Missing("nvidia-pytriton is not installed; `make bench-table` does it")
    backends = folder / "backends"
    shutil.copytree(home / "backends", backends)
    version = re.sub(r".*python(3\.\d+).*", r"\1", str(site))
    shutil.copy(home / "python_backend_stubs" / version / "triton_python_backend_stub", backends / "python")
    ports = free_ports(3)
    command = [str(home / "bin" / "tritonserver"), "--model-repository", str(folder / "models")]
    command += ["--backend-directory", str(backends), "--allow-gpu-metrics", "false"]
    for protocol, port in zip(("http", "grpc", "metrics"), ports, strict=True):
        command += [f"--{protocol}-address", "127.0.0.1", f"--{protocol}-port", str(port)]
    variables = {
        **os.environ,
        "LD_LIBRARY_PATH": str(site / "nvidia_pytriton.libs"),
        "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "CUDA_VISIBLE_DEVICES": "",
    }
    with running(command, folder / "log", variables) as process:
        wait_until_ready(process, folder / "log", ports[0], READY)
        text = (folder / "log").read_text(errors="replace")
        found = re.search(r"server_version\s*\|\s*([\d.]+)", text)
        wheel = next(site.glob("nvidia_pytriton-*.dist-info")).name.split("-")[1].removesuffix(".dist")
        label = f"Triton {found[1] if found else '?'} (nvidia-pytriton {wheel})"
        yield Server(name, label, ports[0], ports[1], process.pid)


@contextmanager
def mlserver(name: str, folder: Path, environment: Path) -> Iterator[Server]:
    """MLServer, installed in ``environment``, with a runtime that returns its input, in one process."""
    program = environment / "bin" / "mlserver"
    if not program.exists():
        raise Missing("MLServer is not installed; `make bench-table` does it")
    ports = free_ports(3)
    home = folder / "identity"
    home.mkdir(parents=True)
    settings = {"name": "identity", "implementation": "mlserver_identity.Identity"}
    (home / "model-settings.json").write_text(json.dumps(settings))
    numbers = dict(zip(("http_port", "grpc_port", "metrics_port"), ports, strict=True))
    (folder / "settings.json").write_text(json.dumps({**numbers, "parallel_workers": 0, "debug": False}))
    variables = {**os.environ, "PYTHONPATH": str(HERE)}
    with running([str(program), "start", str(folder)], folder / "log", variables) as process:
        wait_until_ready(process, folder / "log", ports[0], READY)
        version = output([str(environment / "bin" / "python"), "-c", "import mlserver; print(mlserver.__version__)"])
        yield Server(name, f"MLServer {version.strip()}", ports[0], ports[1], process.pid)


def end_with_servers() -> None:
    """From now on SIGTERM ends this program as Ctrl-C does: the servers, in sessions of their own, end with it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


@contextmanager
def running(
    command: list[str], log: Path, environment: dict[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    with log.open("wb") as written:
        process = subprocess.Popen(command, stdout=written, stderr=written, env=environment, start_new_session=True)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def wait_until_ready(
    process: "subprocess.Popen[bytes]", log: Path, port: int, path: str, seconds: float = START_SECONDS
) -> None:
    """Return when ``path`` answers with 200."""
    deadline = time.monotonic() + seconds
    while True:
        check(process, log, deadline)
        try:
            with urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (URLError, OSError):
            pass


def check(process: "subprocess.Popen[bytes]", log: Path, deadline: float) -> None:
    if process.poll() is not None or time.monotonic() > deadline:
        raise NotStarted(f"{process.args!r} did not start:\n{log.read_text(errors='replace')[-4000:]}")
    time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(listener.getsockname()[1]) for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def output(command: list[str]) -> str:
    """What a program writes; empty if it fails."""
    return subprocess.run(command, capture_output=True, text=True).stdout
