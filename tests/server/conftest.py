"""Repositories of small models, and a backend whose models do what a test wants."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from onnx import TensorProto, helper

from repoagent.config import ModelConfig
from repoagent.errors import CancelledError, InternalError
from repoagent.server import ModelControlMode, Server
from repoagent.serving.backends.registry import BackendRegistry
from repoagent.serving.instances.backend import BackendInstance, BackendModel, InstanceSpec
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.requests.tensor import Tensor
from repoagent.storage.files.files import ModelFiles
from tests.onnx_models import floats, model_bytes

ADD_SUB_CONFIG = """
backend: "onnxruntime"
max_batch_size: 8
dynamic_batching { priority_levels: 20 default_priority_level: 10 }
"""

IDENTITY_CONFIG = """
backend: "onnxruntime"
input {{ name: "INPUT" data_type: {type} dims: [ -1 ] }}
output {{ name: "OUTPUT" data_type: {type} dims: [ -1 ] }}
"""


def add_sub() -> bytes:
    """OUTPUT0 = INPUT0 + INPUT1, OUTPUT1 = INPUT0 - INPUT1, FP32[N,4]."""
    nodes = [
        helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
        helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
    ]
    return model_bytes(nodes, floats("INPUT0", "INPUT1"), floats("OUTPUT0", "OUTPUT1"))


def identity(data_type: int) -> bytes:
    """OUTPUT = INPUT, of any length."""
    node = helper.make_node("Identity", ["INPUT"], ["OUTPUT"])
    return model_bytes([node], [("INPUT", data_type, ["N"])], [("OUTPUT", data_type, ["N"])])


SCRIPTED_CONFIG = """
backend: "scripted"
max_batch_size: 0
input {{ name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] }}
output {{ name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] }}
model_transaction_policy {{ decoupled: {decoupled} }}
instance_group {{ kind: KIND_CPU count: 1 }}
"""


class ScriptedBackend:
    """Its model ``slow`` answers when :attr:`go` is set or the request is cancelled, ``repeat`` sends INPUT responses
    and an empty end, ``broken`` raises."""

    name: ClassVar[str] = "scripted"
    platforms: ClassVar[tuple[str, ...]] = ()
    default_model_filename: ClassVar[str] = "model.txt"
    keeps_files_open: ClassVar[bool] = False

    def __init__(self) -> None:
        self.started = threading.Event()
        self.go = threading.Event()

    def gpus(self) -> Sequence[int]:
        return ()

    def auto_complete(self, config: ModelConfig, files: ModelFiles, version: int) -> None:
        pass

    def load(self, config: ModelConfig, files: ModelFiles, version: int) -> "ScriptedModel":
        return ScriptedModel(self, config.name)


class ScriptedModel(BackendModel):
    def __init__(self, backend: ScriptedBackend, name: str) -> None:
        self._instance = ScriptedInstance(backend, name)

    def create_instance(self, spec: InstanceSpec) -> "ScriptedInstance":
        return self._instance

    def close(self) -> None:
        pass


class ScriptedInstance(BackendInstance):
    def __init__(self, backend: ScriptedBackend, name: str) -> None:
        self.backend = backend
        self.name = name

    def close(self) -> None:
        pass

    def execute(self, requests: Sequence[InferRequest]) -> None:
        for request in requests:
            getattr(self, self.name)(request, request)

    def _answer(self, request: InferRequest, **fields: Any) -> InferResponse:
        return InferResponse(self.name, "1", request.asked.id, **fields)

    def slow(self, request: InferRequest, sender: Any) -> None:
        self.backend.started.set()
        while not self.backend.go.wait(0.001):
            if request.cancelled:
                sender.send(self._answer(request, error=CancelledError("cancelled while running")), True)
                return
        sender.send(self._answer(request, outputs={"OUTPUT": request.inputs["INPUT"]}, parameters={"took": 1}), True)

    def repeat(self, request: InferRequest, sender: Any) -> None:
        for number in range(int(request.inputs["INPUT"].array[0])):
            output = Tensor.of(np.array([number], np.int32))
            sender.send(self._answer(request, outputs={"OUTPUT": output}), False)
        sender.send(None, True)

    def broken(self, request: InferRequest, sender: Any) -> None:
        raise InternalError("the model is broken")


def write_model(root: Path, name: str, content: bytes, config: str = "", filename: str = "model.onnx") -> None:
    directory = root / name / "1"
    directory.mkdir(parents=True)
    (directory / filename).write_bytes(content)
    if config:
        (root / name / "config.pbtxt").write_text(config)


@pytest.fixture(autouse=True)
def _own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPOAGENT_WORKSPACE", str(tmp_path / "workspace"))
    monkeypatch.setenv("REPOAGENT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """addsub, text, half (BF16), slow, repeat and broken."""
    root = tmp_path / "models"
    write_model(root, "addsub", add_sub(), ADD_SUB_CONFIG)
    write_model(root, "text", identity(TensorProto.STRING), IDENTITY_CONFIG.format(type="TYPE_STRING"))
    write_model(root, "half", identity(TensorProto.BFLOAT16), IDENTITY_CONFIG.format(type="TYPE_BF16"))
    for name, decoupled in (("slow", "false"), ("repeat", "true"), ("broken", "false")):
        write_model(root, name, b"", SCRIPTED_CONFIG.format(decoupled=decoupled), "model.txt")
    return root


@pytest.fixture
def scripted() -> ScriptedBackend:
    return ScriptedBackend()


@pytest.fixture
def backends(scripted: ScriptedBackend) -> BackendRegistry:
    registry = BackendRegistry()
    registry.add("scripted", scripted)
    return registry


@pytest.fixture
def make_server(repository: Path, backends: BackendRegistry) -> Iterator[Callable[..., Server]]:
    """Makes servers over the repository, without agents' directories; those that run are stopped at the end."""
    made: list[Server] = []

    def make(**fields: Any) -> Server:
        server = Server(**{"model_repository": str(repository), **fields}, backends=backends)
        made.append(server)
        return server

    yield make
    for server in made:
        server.__exit__()


@pytest.fixture
def server(make_server: Callable[..., Server]) -> Server:
    """A running server with every model loaded."""
    return make_server(model_control_mode=ModelControlMode.EXPLICIT, startup_models=["*"]).start()


@pytest.fixture
def addsub_inputs() -> dict[str, Any]:
    return {
        "INPUT0": np.arange(4, dtype=np.float32).reshape(1, 4),
        "INPUT1": np.ones((1, 4), np.float32),
    }


@pytest.fixture
def add_sub_model() -> bytes:
    return add_sub()
