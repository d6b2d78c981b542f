"""A local Ray cluster for the tests of this distribution, and applications on it, asked by stock clients.

The cluster is a small one of its own: nothing of it outlives the tests. Ray's gRPC proxy cannot be kept to loopback, so
its port is open for as long as the tests run.
"""

import json
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import onnx
import pytest
import tritonclient.grpc
import tritonclient.http
from onnx import TensorProto, helper

# Ray reports nothing, and its token, without which strangers could run code in the cluster, is in no file.
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
# Its processes have seconds to start, which a busy machine may not have: see also _PatientTime.
os.environ |= {"RAY_agent_register_timeout_ms": "240000", "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120"}
# An application ends when its requests have: no balancer of another machine has to forget it first.
os.environ |= {"RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0"}
ray = pytest.importorskip("ray", reason="ray[serve] is not installed: `make ray` installs it")

from repoagent_ray.environment import CLUSTER  # noqa: E402

os.environ |= CLUSTER  # Ray Serve reads it when it is imported

from ray import serve  # noqa: E402
from ray._private import node  # noqa: E402
from ray.serve._private import api  # noqa: E402
from repoagent_ray import Settings, application  # noqa: E402
from repoagent_ray.servicer import FUNCTIONS  # noqa: E402

TREE: Final = Path(__file__).resolve().parents[3]
PATIENCE: Final = 120
"""Seconds after which anything that is waited for counts as never coming."""

_MEMORY: Final = 120 << 20
_LONGEST: Final = 40
"""Characters of a directory below which sockets of Ray still have names that the system takes."""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


class _PatientTime:
    """In the place of ``time``: Ray gives its processes 30 seconds to start, which a busy machine may not have."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def monotonic(self) -> float:
        return time.monotonic() / 8


@dataclass(frozen=True)
class Cluster:
    """Where its proxies listen."""

    http: str
    grpc: str


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield from _cluster(monkeypatch)


def _cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    os.environ["DIGITS_IDENTITY"] = (TREE / "examples/digits/identity.txt").read_text().split()[-1]
    place = tempfile.gettempdir() if len(tempfile.gettempdir()) < _LONGEST else "/tmp"
    scratch = tempfile.mkdtemp(prefix="ray", dir=place)
    ports = _free_port(), _free_port()
    short = tempfile.mkdtemp(prefix="ha", dir="/tmp")  # Ray appends 68 characters to it, of the 97 that HAProxy takes
    os.environ |= _haproxy(Path(short))
    try:
        monkeypatch.setattr(node, "time", _PatientTime())
        monkeypatch.setattr(api, "HTTP_PROXY_TIMEOUT", 2 * PATIENCE)
        ray.init(
            num_cpus=2, object_store_memory=_MEMORY, include_dashboard=False, log_to_driver=False, _temp_dir=scratch
        )
        serve.start(
            http_options={"host": "127.0.0.1", "port": ports[0]},
            grpc_options={"port": ports[1], "grpc_servicer_functions": FUNCTIONS},
        )
        yield Cluster(f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}")
    finally:
        if ray.is_initialized():
            serve.shutdown()
            ray.shutdown()
        for folder in (scratch, short):
            shutil.rmtree(folder, ignore_errors=True)


def _haproxy(folder: Path) -> dict[str, str]:
    """What keeps the files and ports of a HAProxy of Ray's from those of other clusters on this machine."""
    ports = ("HAPROXY_METRICS_PORT", "HAPROXY_STATS_PORT", "FALLBACK_PROXY_HTTP_PORT", "FALLBACK_PROXY_GRPC_PORT")
    files = {
        "CONFIG_FILE_LOC": "haproxy.cfg",
        "SOCKET_PATH": "admin.sock",
        "SERVER_STATE_BASE": ".",
        "SERVER_STATE_FILE": "server-state",
        "METRICS_SOCKET_PATH": "metrics.sock",
    }
    return {
        **{f"RAY_SERVE_{name}": str(_free_port()) for name in ports},
        **{f"RAY_SERVE_HAPROXY_{name}": str(folder / file) for name, file in files.items()},
    }


@dataclass
class App:
    """An application that runs."""

    name: str
    cluster: Cluster

    @property
    def url(self) -> str:
        """Of its HTTP routes."""
        return f"http://{self.cluster.http}"

    @contextmanager
    def http(self) -> Iterator[Any]:
        """NVIDIA's client for HTTP."""
        address, patience = self.cluster.http, PATIENCE
        with tritonclient.http.InferenceServerClient(address, concurrency=4, network_timeout=patience) as client:
            yield client

    @contextmanager
    def grpc(self) -> Iterator[Any]:
        """The one for gRPC."""
        with tritonclient.grpc.InferenceServerClient(self.cluster.grpc) as client:
            yield client

    def ask(self, model: str, value: float = 1.0) -> httpx.Response:
        """One inference over HTTP with a model of :meth:`World.model`."""
        tensor = {"name": "X", "datatype": "FP32", "shape": [1, 2], "data": [value, value + 1]}
        return httpx.post(f"{self.url}/v2/models/{model}/infer", json={"inputs": [tensor]}, timeout=PATIENCE)

    def all(self, question: str, *arguments: Any) -> list[Any]:
        """What each replica answers, asked past the ingress."""
        found: list[Any] = self.handle.broadcast(question, *arguments).results(timeout_s=PATIENCE)
        return found

    @property
    def handle(self) -> Any:
        """Of the replicas."""
        return serve.get_deployment_handle("Models", self.name)

    def loaded(self) -> list[set[str]]:
        """The models that each replica has loaded."""
        return [{entry["name"] for entry in index} for index in self.all("index", True)]

    def processes(self) -> list[int]:
        """The process ids of the replicas."""
        title = f":ServeReplica:{self.name}:Models".encode()
        found = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if title in file.read_bytes():  # more stands before it while a method runs
                    found.append(int(file.parent.name))
            except OSError:  # it has ended
                continue
        return sorted(found)


def await_true(condition: Callable[[], object], what: str) -> None:
    """Return when ``condition`` holds: of things that nobody announces."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE} s: {what}"
        time.sleep(0.05)


_AGENT: Final = '''\
"""Writes every call down, and does what the parameters of its entry say."""

import os, socket
from contextlib import suppress
from pathlib import Path
from repoagent.api import Agent

LOG = Path(LOG_FILE)


class Scripted(Agent):
    api_version = 1

    def model_action(self, model, action):
        with LOG.open("a") as log:
            log.write(f"{os.getpid()} {model.name} {action.name}\\n")
        if action.name == "LOAD" and model.parameters.get("copies"):
            target = model.acquire_location()
            model.filesystem().get(model.root() + "/", str(target) + "/", recursive=True)
            model.update_location(target)
        if action.name == "LOAD" and (port := model.parameters.get("gate")):
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", int(port))) as gate:
                gate.recv(1)
        if action.name == "LOAD" and (text := model.parameters.get("refuse")):
            raise RuntimeError(text)
'''


class Gate:
    """Where an agent, or a model, stands still until the test lets it go on."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE)
        self._inside: list[socket.socket] = []

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def reached(self) -> None:
        """Return once somebody stands there."""
        self._inside.append(self._listener.accept()[0])

    def open(self) -> None:
        """Let all who stand there go on."""
        while self._inside:
            self._inside.pop().close()

    def close(self) -> None:
        """Let all go on, for good."""
        self.open()
        self._listener.close()


@dataclass
class World:
    """The files of a test module, and the applications over them."""

    root: Path
    cluster: Cluster
    stack: ExitStack
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        agent = self.agents / "scripted" / "agent.py"
        agent.parent.mkdir(parents=True)
        self.models.mkdir()
        agent.write_text(_AGENT.replace("LOG_FILE", repr(str(self.root / "calls"))))

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def agents(self) -> Path:
        return self.root / "agents"

    @property
    def work(self) -> Path:
        """Where the workspaces of every replica are."""
        return self.root / "work"

    def model(self, name: str, add: float = 0.0, agent: Mapping[str, str] | None = None, config: str = "") -> Path:
        """Write a model that adds ``add`` to its two values, behind the scripted agent if that has parameters."""
        directory = self.models / name
        (directory / "1").mkdir(parents=True)
        shape: list[str | int | None] = ["batch", 2]
        graph = helper.make_graph(
            [helper.make_node("Add", ["X", "C"], ["Y"])],
            "g",
            [helper.make_tensor_value_info("X", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("Y", TensorProto.FLOAT, shape)],
            [helper.make_tensor("C", TensorProto.FLOAT, [1], [add])],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, str(directory / "1" / "model.onnx"))
        self._configure(directory, f'backend: "onnxruntime" max_batch_size: 4 {config}', agent)
        return directory

    def python(self, name: str, code: str, config: str) -> None:
        """Write a Python model."""
        file = self.models / name / "1" / "model.py"
        file.parent.mkdir(parents=True)
        file.write_text(code)
        self._configure(self.models / name, f'backend: "python" {config}', None)

    def copy(self, source: str) -> None:
        """Take over a model of the examples."""
        shutil.copytree(TREE / source, self.models / Path(source).name)

    @staticmethod
    def _configure(directory: Path, text: str, agent: Mapping[str, str] | None) -> None:
        if agent is not None:
            pairs = "".join(
                f"parameters {{ key: {json.dumps(key)} value: {json.dumps(value)} }}" for key, value in agent.items()
            )
            text += f' model_repository_agents {{ agents [ {{ name: "scripted" {pairs} }} ] }}'
        (directory / "config.pbtxt").write_text(text)

    def calls(self) -> list[Sequence[str]]:
        """Process id, model and action of every call of the scripted agent."""
        log = self.root / "calls"
        return [line.split() for line in log.read_text().splitlines()] if log.exists() else []

    def run(self, **settings: Any) -> App:
        """Run an application over the models, in the place of the one before."""
        self.delete()
        options = {
            "repo_agent_directory": str(self.agents),
            "workspace_directory": str(self.work),
            "agent_cache_directory": str(self.root / "cache"),
            **settings.pop("options", {}),
        }
        name = f"app{os.getpid()}x{len(self.names)}"
        self.names.append(name)
        shown = {"replica": {"num_cpus": 0.1}, "drain_seconds": PATIENCE, **settings}
        made = application(Settings(model_repository=str(self.models), options=options, **shown))
        serve.run(made, name=name, route_prefix="/")
        return App(name, self.cluster)

    def delete(self) -> None:
        """End the application that runs."""
        if self.names:
            serve.delete(self.names[-1])

    def gate(self) -> Gate:
        """A new gate, opened at the end."""
        gate = Gate()
        self.stack.callback(gate.close)
        return gate

    def owners(self) -> set[int]:
        """The process ids of those that have workspaces."""
        return {int(path.name.partition("-")[0]) for path in self.work.glob("[0-9]*")}

    def left_in_workspaces(self) -> list[str]:
        """The directories of models that are there."""
        return sorted(path.name for path in self.work.glob("*/*") if path.is_dir())


@pytest.fixture(scope="module")
def world(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ExitStack() as stack:
        world = World(tmp_path_factory.mktemp("world"), cluster, stack)
        stack.callback(world.delete)
        yield world


def tensor(kind: Any, value: float = 1.0) -> Any:
    """The input of a model of :meth:`World.model`; ``kind``: ``tritonclient.http`` or ``tritonclient.grpc``."""
    made = kind.InferInput("X", [1, 2], "FP32")
    made.set_data_from_numpy(np.array([[value, value + 1]], np.float32))
    return made
