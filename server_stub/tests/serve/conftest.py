"""Real ``repoagent serve`` child processes, and agents that do what the configuration of a model tells them.

Nothing here waits for a length of time: a server is awaited by its ready file, an agent by a connection that it opens.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import httpx
import onnx
import pytest
import tritonclient.http as triton
from onnx import TensorProto, helper

from tests.waiting import in_background
from tests.warm import Program, Warm

__all__ = ["in_background"]

PATIENCE: Final = 120
"""Seconds after which anything that is waited for counts as never coming."""

PROCESSES: Final = os.environ.get("REPOAGENT_TEST_PROCESSES", "")
"""A number: every server of these tests has that many workers."""

PROGRAM: Final = [sys.executable, "-c", "from repoagent.cli.main import main; main()", "serve"]

_HERE: Final = f"{Path(__file__).parent}{os.sep}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this directory starts a program, which takes a second at least."""
    for item in items:
        if str(item.path).startswith(_HERE):
            item.add_marker(pytest.mark.slow)


class Server:
    """A running server, its log as far as it is written, and one HTTP client for it."""

    def __init__(self, process: subprocess.Popen[bytes] | Program, ready: Path, log: Path) -> None:
        self.process = process
        self.ready = ready
        self._log = log
        self.http = httpx.Client(timeout=PATIENCE)

    @property
    def log(self) -> str:
        """What it has written so far. It writes to a file: what it logs before it answers is there with the answer."""
        return self._log.read_text()

    @property
    def address(self) -> str:
        """``host:port`` of its HTTP."""
        return self.http.base_url.netloc.decode()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Look again and again until ``condition`` holds; the server must stay alive meanwhile."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert self.process.poll() is None, f"the server ended while it was waited for: {what}\n{self.log}"
            assert time.monotonic() < end, f"not within {PATIENCE} s: {what}\n{self.log}"
            time.sleep(0.005)

    def wait_ready(self) -> "Server":
        """Return once it serves."""
        self.until(self.ready.exists, "the ready file")
        self.http.base_url = httpx.URL(f"http://127.0.0.1:{self.port('http')}")
        return self

    def port(self, front_end: str) -> int:
        """The port of ``http`` or ``grpc``."""
        port: int = json.loads(self.ready.read_text())[front_end]["port"]
        return port

    # -- requests -------------------------------------------------------------------------------------------------

    def load(self, name: str) -> httpx.Response:
        """Ask for a load."""
        return self.http.post(f"/v2/repository/models/{name}/load")

    def unload(self, name: str) -> httpx.Response:
        """Ask for an unload."""
        return self.http.post(f"/v2/repository/models/{name}/unload")

    def index(self) -> dict[str, dict[str, Any]]:
        """The repository index, by the name of the model."""
        return {entry["name"]: entry for entry in self.http.post("/v2/repository/index").json()}

    def ask(self, model: str, **options: Any) -> httpx.Response:
        """One inference with -1, 2, -3, 4."""
        tensor = {"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [-1, 2, -3, 4]}
        return self.http.post(f"/v2/models/{model}/infer", json={"inputs": [tensor]}, **options)

    def answer(self, model: str) -> list[float]:
        """What the model makes of -1, 2, -3, 4."""
        response = self.ask(model)
        assert response.status_code == 200, response.text
        values: list[float] = response.json()["outputs"][0]["data"]
        return values

    @contextmanager
    def triton(self) -> Iterator[Any]:
        """Triton's own client."""
        with triton.InferenceServerClient(self.address, concurrency=4, network_timeout=PATIENCE) as client:
            yield client

    # -- the end --------------------------------------------------------------------------------------------------

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send the signal; the exit status."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        """The exit status, once it has ended."""
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        """Kill it if it lives, and let go of everything."""
        self.http.close()
        self.process.kill()
        self.process.wait(PATIENCE)


_AGENT: Final = '''\
"""Does what the parameters of its entry say; writes every call down."""

import os, signal, socket, time
from functools import cached_property
from pathlib import Path
from repoagent.api import Agent

LOG = Path(LOG_FILE)


def note(model, name, call):
    with LOG.open("a") as log:
        log.write(f"{model} {name} {call}\\n")


class Scripted(Agent):
    api_version = 1

    def initialize(self):
        note("-", NAME, "initialize")
        if NAME.startswith("initialize_raises"):
            raise RuntimeError("told to raise at initialize")

    def finalize(self):
        note("-", NAME, "finalize")
        if NAME.startswith("finalize_raises"):
            raise RuntimeError("told to raise at finalize")

    def model_initialize(self, model):
        self.step(model, "model_initialize")

    def model_finalize(self, model):
        self.step(model, "model_finalize")

    def model_action(self, model, action):
        self.step(model, action.name)

    def step(self, model, call):
        note(model.name, NAME, call)
        for key, value in model.parameters.items():
            at, _, argument = value.partition(" ")
            if at == call:
                getattr(self, "do_" + key)(model, call, argument)

    def do_raise(self, model, call, _):
        raise RuntimeError(f"told to raise at {call}")

    def do_kill(self, model, call, _):
        os.kill(os.getpid(), signal.SIGKILL)

    def do_block(self, model, call, port):
        with socket.create_connection(("127.0.0.1", int(port))) as gate:
            gate.recv(1)

    def do_await_cancel(self, model, call, port):
        with socket.create_connection(("127.0.0.1", int(port))):
            end = time.monotonic() + 120
            while not model.cancelled and time.monotonic() < end:
                time.sleep(0.002)
        if not model.cancelled:
            raise RuntimeError("never cancelled")

    def do_copy(self, model, call, kind):
        target = model.acquire_location(confidential=kind == "confidential")
        (target / "planted").write_text("PLANTED-PLAINTEXT")
        model.filesystem().get(model.root() + "/", str(target) + "/", recursive=True)
        model.update_location(target)

    def do_plant(self, model, call, kind):
        """Half of a file, as one who is killed while writing it leaves."""
        target = model.acquire_location(confidential=kind == "confidential")
        with (target / "planted").open("wb", buffering=0) as file:
            file.write(b"PLANTED-PLAINTEXT")
            os.kill(os.getpid(), signal.SIGKILL)

    def do_fill(self, model, call, size):
        (model.acquire_location(confidential=True) / "large").write_bytes(bytes(int(size)))

    def do_reserve(self, model, call, size):
        model.acquire_location(confidential=True, size_hint=int(size))
'''


class Gate:
    """Where an agent stands still until the test lets it go on."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE)
        self._inside: list[socket.socket] = []

    @property
    def port(self) -> int:
        """For the parameter ``block`` or ``await_cancel``."""
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


Entry = tuple[str, Mapping[str, str]]
"""The name of an agent and its parameters."""


@dataclass
class World:
    """Files of one test module: a repository, agents, workspaces, and the servers that were started over them."""

    root: Path
    stack: ExitStack
    warm: Warm
    servers: list[Server] = field(default_factory=list)

    def __post_init__(self) -> None:
        for directory in (self.models, self.agents):
            directory.mkdir()

    @property
    def models(self) -> Path:
        """The repository."""
        return self.root / "models"

    @property
    def agents(self) -> Path:
        """The repository-agent directory."""
        return self.root / "agents"

    @property
    def work(self) -> Path:
        """Where the workspaces of every server of this world are."""
        return self.root / "work"

    @cached_property
    def shared_memory(self) -> Path:
        """A private directory in memory: the start of another test's server must not clean up after a killed one."""
        directory = Path(tempfile.mkdtemp(prefix="repoagent-test-", dir="/dev/shm"))
        self.stack.callback(shutil.rmtree, directory, ignore_errors=True)
        return directory

    @property
    def memory(self) -> Path:
        """Where the confidential workspaces of every server of this world are."""
        return self.shared_memory / f"repoagent-{os.geteuid()}"

    def agent(self, name: str, text: str | None = None) -> str:
        """Write an agent: the scripted one, or ``text``."""
        file = self.agents / name / "agent.py"
        file.parent.mkdir(exist_ok=True)
        scripted = _AGENT.replace("LOG_FILE", repr(str(self.root / "calls"))).replace("NAME", repr(name))
        file.write_text(text if text is not None else scripted)
        return name

    def model(self, name: str, chain: Sequence[Entry] = (), *, operation: str = "Neg", config: str = "") -> Path:
        """Write an ONNX model that goes through ``chain``; its directory."""
        directory = self.models / name
        (directory / "1").mkdir(parents=True, exist_ok=True)
        shape: list[str | int | None] = ["batch", 4]
        graph = helper.make_graph(
            [helper.make_node(operation, ["X"], ["Y"])],
            name,
            [helper.make_tensor_value_info("X", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("Y", TensorProto.FLOAT, shape)],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, str(directory / "1" / "model.onnx"))
        self.configure(name, chain, config)
        return directory

    def configure(self, name: str, chain: Sequence[Entry] = (), config: str = "") -> None:
        """Write ``config.pbtxt`` of a model."""
        agents = "".join(
            f'agents [ {{ name: "{agent}" '
            + "".join(f"parameters {{ key: {json.dumps(k)} value: {json.dumps(v)} }} " for k, v in parameters.items())
            + "} ]\n"
            for agent, parameters in chain
        )
        text = f'backend: "onnxruntime"\n{config}\n'
        if chain:
            text += f"model_repository_agents {{\n{agents}}}\n"
        (self.models / name / "config.pbtxt").write_text(text)

    def calls(self, model: str | None = None) -> list[str]:
        """``"agent CALL"`` for every call for ``model``; without one, ``"model agent CALL"`` for all."""
        log = self.root / "calls"
        lines = log.read_text().splitlines() if log.exists() else []
        if model is None:
            return lines
        return [line.partition(" ")[2] for line in lines if line.startswith(f"{model} ")]

    def flags(self, *flags: str, repository: str | None = None) -> list[str]:
        """Those of a server over the files of this world, with nothing of it elsewhere."""
        given = [f"--model-repository={repository or self.models}", "--http-port=0"]
        given += ["--allow-metrics=false", f"--repoagent-directory={self.agents}"]
        given += [f"--workspace-directory={self.work}", f"--confidential-directory={self.shared_memory}"]
        if PROCESSES and not any(flag.startswith("--processes") for flag in flags):
            given.append(f"--processes={PROCESSES}")
        return [*given, f"--cache-directory={self.root / 'cache'}", *flags]

    def start(
        self,
        *flags: str,
        env: Mapping[str, str] | None = None,
        repository: str | None = None,
        before: Sequence[str] = (),
        program: Sequence[str] = (),
    ) -> Server:
        """Start a server, not waiting for it.

        It is forked off the warm process, unless a ``program`` is given, or ``before``, which runs it instead of the
        system. Give ``PROGRAM`` where ``/proc`` has to show its variables: it does so only of what was started.
        """
        ready = self.root / f"ready-{len(self.servers)}.json"
        given = self.flags(f"--ready-file={ready}", *flags, repository=repository)
        log = self.root / f"log-{len(self.servers)}"
        process: subprocess.Popen[bytes] | Program
        with log.open("w") as stderr:
            variables = os.environ | dict(env or {})
            if before or program:
                command = [*before, *(program or PROGRAM), *given]
                process = subprocess.Popen(command, stderr=stderr, stdin=subprocess.DEVNULL, env=variables)
            else:
                process = self.warm.start(["serve", *given], stderr=stderr, env=variables)
        server = Server(process, ready, log)
        self.servers.append(server)
        self.stack.callback(server.close)
        return server

    def serve(self, *flags: str, **more: Any) -> Server:
        """Start a server in explicit mode and wait until it serves."""
        return self.start("--model-control-mode=explicit", *flags, **more).wait_ready()

    def gate(self) -> Gate:
        """A new gate, opened at the end."""
        gate = Gate()
        self.stack.callback(gate.close)
        return gate

    def leftovers(self, server: Server) -> list[str]:
        """Every file that ``server`` has in the workspaces, on disk and in memory."""
        pid = f"{server.process.pid}-*"
        found = [path for root in (self.work, self.memory) for path in root.glob(f"{pid}/**/*")]
        return sorted(str(path) for path in found if path.name != ".alive")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Iterator[World]:
    """One repository, agents and servers for a module. Model ``plain`` needs no agent and negates."""
    with ExitStack() as stack:
        world = World(tmp_path_factory.mktemp("world"), stack, warm)
        world.model("plain")
        yield world
