"""Servers that benchmarks start: ours, echoes and peers, each in a session of its own, on free ports."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

HERE = Path(__file__).parent
START_SECONDS = 120.0
MAIN = "from repoagent.cli.main import main; main()"
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
Process = subprocess.Popen[bytes]


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
    metrics: int = 0


def report_missing(missing: Mapping[str, str]) -> int:
    """Print the peers that are not there, with how to get them; the exit status."""
    for name, remedy in missing.items():
        print(f"MISSING {name}: {remedy}")
    return 1 if missing else 0


def write_model(repository: Path) -> None:
    """A Python model that returns its 16 numbers."""
    (repository / "identity" / "1").mkdir(parents=True)
    (repository / "identity" / "1" / "model.py").write_text(IDENTITY)
    (repository / "identity" / "config.pbtxt").write_text(CONFIG)


@contextmanager
def repoagent(
    name: str, folder: Path, flags: Sequence[str] = (), program: Sequence[str] = ("-c", MAIN)
) -> Iterator[Server]:
    """This project, as it is installed here, over ``folder/models``; ``program`` is what Python runs."""
    place = folder / re.sub(r"\W", "-", name)
    ready, log = place.with_suffix(".json"), place.with_suffix(".log")
    command = [sys.executable, *program, "serve", f"--model-repository={folder / 'models'}", "--http-port=0"]
    command += ["--grpc-port=0", "--metrics-port=0", f"--ready-file={ready}", f"--workspace-directory={place}", *flags]
    with running(command, log) as process:
        document = document_of(process, log, ready)
        ports = {protocol: int(document[protocol]["port"]) for protocol in ("http", "grpc", "metrics")}
        revision = output(["git", "-C", str(HERE), "describe", "--always", "--dirty"]).strip() or "unknown"
        yield Server(name, f"repoagent {revision}", session=process.pid, **ports)


@contextmanager
def echo(kind: str, folder: Path) -> Iterator[Server]:
    """A server that returns what it gets: ``http`` on uvicorn, or ``grpc`` on grpcio."""
    ready, log = folder / f"echo-{kind}.json", folder / f"echo-{kind}.log"
    with running([sys.executable, str(HERE / "echoes.py"), kind, str(ready)], log) as process:
        port = int(document_of(process, log, ready)["port"])
        yield Server("echo", "", port, port, process.pid)


@contextmanager
def triton(name: str, folder: Path, environment: Path) -> Iterator[Server]:
    """The stock server in the wheel nvidia-pytriton, installed in ``environment``, over ``folder/models``.

    It needs no GPU.
    """
    command, settings, wheel = triton_command(environment, folder / "backends")
    ports = free_ports(3)
    command += ["--model-repository", str(folder / "models")]
    for protocol, port in zip(("http", "grpc", "metrics"), ports, strict=True):
        command += [f"--{protocol}-address", "127.0.0.1", f"--{protocol}-port", str(port)]
    with running(command, folder / "log", os.environ | settings) as process:
        wait_until_ready(process, folder / "log", ports[0], "/v2/models/identity/ready")
        text = (folder / "log").read_text(errors="replace")
        found = re.search(r"server_version\s*\|\s*([\d.]+)", text)
        label = f"Triton {found[1] if found else '?'} ({wheel})"
        yield Server(name, label, ports[0], ports[1], process.pid)


def triton_command(environment: Path, backends: Path) -> tuple[list[str], dict[str, str], str]:
    """The stock server in ``environment`` over copies of its backends: command, variables, and the wheel with version.

    Raises:
        Missing: there is none.
    """
    site = next(environment.glob("lib/python3*/site-packages"), environment)
    home = site / "pytriton" / "tritonserver"
    if not home.is_dir():
        raise Missing("nvidia-pytriton is not installed; `make bench-table` does it")
    shutil.copytree(home / "backends", backends)
    version = re.sub(r".*python(3\.\d+).*", r"\1", str(site))
    shutil.copy(home / "python_backend_stubs" / version / "triton_python_backend_stub", backends / "python")
    command = [str(home / "bin" / "tritonserver"), "--backend-directory", str(backends)]
    variables = {
        "LD_LIBRARY_PATH": str(site / "nvidia_pytriton.libs"),
        "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "CUDA_VISIBLE_DEVICES": "",
    }
    wheel = next(site.glob("nvidia_pytriton-*.dist-info")).name.split("-")[1].removesuffix(".dist")
    return [*command, "--allow-gpu-metrics", "false"], variables, f"nvidia-pytriton {wheel}"


@contextmanager
def mlserver(
    name: str, folder: Path, environment: Path, settings: Mapping[str, Mapping[str, Any]] | None = None
) -> Iterator[Server]:
    """MLServer, installed in ``environment``, in one process.

    It has the models of ``settings``; without them those of ``folder/models``, with a runtime that returns its input.
    """
    program = environment / "bin" / "mlserver"
    if not program.exists():
        raise Missing("MLServer is not installed; `make bench-table` does it")
    ports, home = free_ports(3), folder / "mlserver"
    echoes = {"implementation": "mlserver_models.Identity"}
    for model, given in (settings or {one.name: echoes for one in (folder / "models").iterdir()}).items():
        (home / model).mkdir(parents=True)
        (home / model / "model-settings.json").write_text(json.dumps({"name": model, **given}))
    numbers = dict(zip(("http_port", "grpc_port", "metrics_port"), ports, strict=True))
    (home / "settings.json").write_text(json.dumps({**numbers, "parallel_workers": 0, "debug": False}))
    variables = {**os.environ, "PYTHONPATH": str(HERE)}
    with running([str(program), "start", str(home)], folder / "mlserver.log", variables) as process:
        wait_until_ready(process, folder / "mlserver.log", ports[0], "/v2/health/ready")
        version = output([str(environment / "bin" / "python"), "-c", "import mlserver; print(mlserver.__version__)"])
        yield Server(name, f"MLServer {version.strip()}", ports[0], ports[1], process.pid)


def end_with_servers() -> None:
    """From now on SIGTERM ends this program as Ctrl-C does: the servers, in sessions of their own, end with it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


@contextmanager
def running(command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> Iterator[Process]:
    """A process in a session of its own, which ends with the block."""
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


def document_of(process: Process, log: Path, ready: Path) -> Any:
    """What a server writes to ``ready`` when it is."""
    _wait(process, log, START_SECONDS, ready.exists)
    return json.loads(ready.read_text())


def wait_until_ready(process: Process, log: Path, port: int, path: str, seconds: float = START_SECONDS) -> None:
    """Return when ``path`` answers with 200; with no path, when ``port`` takes a connection."""

    def answers() -> bool:
        try:
            if not path:
                socket.create_connection(("127.0.0.1", port)).close()
                return True
            with urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    _wait(process, log, seconds, answers)


def _wait(process: Process, log: Path, seconds: float, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise NotStarted(f"{process.args!r} did not start:\n{log.read_text(errors='replace')[-4000:]}")
        time.sleep(0.02)


@contextmanager
def piped(command: Sequence[str]) -> Iterator[tuple["subprocess.Popen[str]", Any]]:
    """A process that serves until its standard input ends, and the JSON that it prints first."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process, json.loads(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait()


def free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(listener.getsockname()[1]) for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def output(command: Sequence[str]) -> str:
    """What a program writes; empty if it fails."""
    return subprocess.run(command, capture_output=True, text=True).stdout
