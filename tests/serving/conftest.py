"""ONNX models, a loader without agents, and senders that can be waited for."""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from repoagent.api.report import LoadReport
from repoagent.config import ModelConfig, copy, read_text
from repoagent.errors import AgentRefusedError, CancelledError, InternalError
from repoagent.serving.assembly import ControlMode, CoreOptions
from repoagent.serving.backends.registry import BackendRegistry
from repoagent.serving.core import ServingCore
from repoagent.serving.instances.backend import BackendModel, BatchRunner, InstanceSpec
from repoagent.serving.requests.request import DISCARD, Asked, InferRequest, InferResponse, ResponseSender
from repoagent.serving.requests.tensor import Tensor
from repoagent.storage.files.files import DirectoryFiles, MemoryFiles, ModelFiles
from repoagent.storage.repositories.sources import MemorySource, ModelSource
from tests.onnx_models import model_bytes

OnnxMaker = Callable[..., bytes]


def make_onnx(
    operator: str = "Identity",
    *,
    inputs: Sequence[str] = ("x",),
    outputs: Sequence[str] = ("y",),
    data_type: int = TensorProto.FLOAT,
    shape: Sequence[Any] = ("N", 4),
    output_shape: Sequence[Any] | None = None,
    constants: Mapping[str, Any] | None = None,
) -> bytes:
    """A graph of one operator. ``constants`` are further inputs of it, kept in the file."""
    initialisers = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    node = helper.make_node(operator, [*inputs, *(constants or {})], list(outputs))
    given = [(name, data_type, shape) for name in inputs]
    made = [(name, data_type, output_shape or shape) for name in outputs]
    return model_bytes([node], given, made, initialisers)


@pytest.fixture
def onnx_model() -> OnnxMaker:
    return make_onnx


@pytest.fixture
def add_constant() -> Callable[[float], bytes]:
    """Makes models that add a constant to FP32[N,4]: which one answered shows in the numbers."""

    def make(value: float) -> bytes:
        return make_onnx("Add", constants={"b": np.full(4, value, np.float32)})

    return make


@pytest.fixture
def memory_files() -> Callable[[Mapping[str, bytes]], MemoryFiles]:
    def refuse() -> Path:
        raise AssertionError("nothing here may be written to a disk")

    return lambda files: MemoryFiles(dict(files), refuse)


@pytest.fixture
def request_of() -> Callable[..., InferRequest]:
    """A request to ``model`` with one FP32 input ``x`` of the given values."""

    def make(
        model: str = "m",
        values: Any = None,
        sender: ResponseSender = DISCARD,
        trace_context: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> InferRequest:
        array = np.asarray([[1, 2, 3, 4]] if values is None else values, dtype=np.float32)
        return InferRequest(Asked(model, {"x": Tensor.of(array)}, **fields), sender, trace_context=trace_context)

    return make


class QueueSender:
    """Keeps what it is sent, in order, for a test that waits."""

    def __init__(self) -> None:
        self.sent: queue.SimpleQueue[tuple[InferResponse | None, bool]] = queue.SimpleQueue()

    def send(self, response: InferResponse | None, final: bool) -> None:
        self.sent.put((response, final))

    def final(self, timeout: float = 60) -> InferResponse:
        response, final = self.sent.get(timeout=timeout)
        assert final
        assert response is not None
        return response


@pytest.fixture
def new_sender() -> Callable[[], QueueSender]:
    return QueueSender


class ScriptedRunner(BatchRunner):
    """A BatchRunner under the control of a test: it adds ``offset``, can be held, and can be told to fail."""

    def __init__(self, offset: float = 0) -> None:
        self.offset = offset
        self.error: Exception | None = None
        self.calls = 0
        self.closed = False
        self.running = threading.Semaphore(0)
        self.hold: threading.Event | None = None
        self.threads: list[int] = []

    def run(self, inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> dict[str, Tensor]:
        self.calls += 1
        self.threads.append(threading.get_ident())
        self.running.release()
        if self.hold is not None:
            assert self.hold.wait(60)
        if self.error is not None:
            raise self.error
        return {"y": Tensor.of(inputs["x"].array + np.float32(self.offset))}

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def new_runner() -> Callable[..., ScriptedRunner]:
    return ScriptedRunner


class ScriptedBackend:
    """A backend whose models are the :class:`ScriptedRunner` objects that a test prepared or can look at.

    The version file says what to do: a number is the offset, ``fail TEXT`` raises.
    """

    name: ClassVar[str] = "scripted"
    platforms: ClassVar[tuple[str, ...]] = ()
    default_model_filename: ClassVar[str] = "model.txt"
    keeps_files_open: ClassVar[bool] = False

    def __init__(self) -> None:
        self.runners: list[ScriptedRunner] = []
        self.models_open = 0
        self.loading = threading.Semaphore(0)
        self.hold: threading.Event | None = None
        self.failing_from: int | None = None
        """The number of the first runner that fails."""

    def gpus(self) -> Sequence[int]:
        return ()

    def auto_complete(self, config: ModelConfig, files: ModelFiles, version: int) -> None:
        if not config.input:
            config.input.add(name="x", data_type=11, dims=[-1, 4])
            config.output.add(name="y", data_type=11, dims=[-1, 4])

    def load(self, config: ModelConfig, files: ModelFiles, version: int) -> "ScriptedModel":
        self.loading.release()
        if self.hold is not None:
            assert self.hold.wait(60)
        text = files.bytes(f"{version}/model.txt").decode()
        if text.startswith("fail"):
            raise RuntimeError(text.removeprefix("fail").strip())
        self.models_open += 1
        return ScriptedModel(self, float(text))


class ScriptedModel(BackendModel):
    def __init__(self, backend: ScriptedBackend, offset: float) -> None:
        self._backend = backend
        self._offset = offset

    def create_instance(self, spec: InstanceSpec) -> ScriptedRunner:
        runner = ScriptedRunner(self._offset)
        if self._backend.failing_from is not None and len(self._backend.runners) >= self._backend.failing_from:
            runner.error = RuntimeError("made to fail")
        self._backend.runners.append(runner)
        return runner

    def close(self) -> None:
        self._backend.models_open -= 1


@pytest.fixture
def scripted() -> ScriptedBackend:
    return ScriptedBackend()


class FakeChain:
    """A chain of one agent, ``a``, that writes down what it is told."""

    def __init__(self, loader: "FakeLoader", number: int, source: ModelSource, config: ModelConfig | None) -> None:
        self.name = source.name
        self.config = config
        self.files: ModelFiles = (
            MemoryFiles(source.files, lambda: Path("/nonexistent"))
            if isinstance(source, MemorySource)
            else DirectoryFiles(Path(source.root))
        )
        self.location = source.location
        self.source = source
        self.in_place = True
        self.private = False
        self._loader = loader
        self._number = number
        self._outcome = "loading"
        self._error: str | None = None

    @property
    def report(self) -> LoadReport:
        return LoadReport(self.name, self._outcome, 0.0, (), self._error)

    def _note(self, action: str) -> None:
        self._loader.trace.append(f"{self.name}{self._number} {action}")

    attestation = None

    def attest(self, versions: Sequence[int] = ()) -> None:
        pass

    def complete(self) -> None:
        self._outcome = "loaded"
        self._note("LOAD_COMPLETE")

    def fail(self, error: BaseException) -> None:
        self._outcome, self._error = "failed", str(error)
        self._note("LOAD_FAIL")

    def unload(self) -> None:
        self._note("UNLOAD")

    def unload_complete(self) -> None:
        self._note("UNLOAD_COMPLETE")

    def files_no_longer_needed(self) -> None:
        self._note("files_no_longer_needed") if self._loader.trace_files else None


class FakeLoader:
    """Stands in for the loader where a test wants to hold a load at a known point or make it fail."""

    def __init__(self) -> None:
        self.trace: list[str] = []
        self.trace_files = False
        self.refusal: str | None = None
        self.hold: threading.Event | None = None
        self.entered = threading.Semaphore(0)
        self.forbidden: str | None = None
        self._numbers: dict[str, int] = {}

    def admit(self, model_name: str, config: ModelConfig) -> None:
        if config.backend == self.forbidden:
            raise InternalError(f"the policy does not allow backend '{config.backend}'")

    def load(
        self,
        source: ModelSource,
        *,
        override: ModelConfig | None = None,
        cancelled: Callable[[], bool] | None = None,
        on_progress: object = None,
    ) -> FakeChain:
        number = self._numbers[source.name] = self._numbers.get(source.name, 0) + 1
        text = source.read_config_text()
        config = copy(override) if override is not None else read_text(text) if text is not None else None
        chain = FakeChain(self, number, source, config)
        chain._note("LOAD")
        self.entered.release()
        if self.hold is not None:
            assert self.hold.wait(60)
        if cancelled is not None and cancelled():
            chain.fail(CancelledError("cancelled"))
            raise CancelledError("cancelled")
        if self.refusal is not None:
            error = AgentRefusedError("a", self.refusal)
            chain.fail(error)
            error.report = chain.report
            raise error
        return chain


@pytest.fixture
def loader() -> FakeLoader:
    return FakeLoader()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "models"
    path.mkdir()
    return path


@pytest.fixture
def write_model(repository: Path) -> Callable[..., Path]:
    """Writes a scripted model into the repository: ``write_model("m", {1: "0.5"})``."""

    def write(name: str, versions: Mapping[int, str | bytes], config: str = 'backend: "scripted"') -> Path:
        directory = repository / name
        for version, content in versions.items():
            (directory / str(version)).mkdir(parents=True, exist_ok=True)
            file = "model.onnx" if isinstance(content, bytes) else "model.txt"
            data = content if isinstance(content, bytes) else content.encode()
            (directory / str(version) / file).write_bytes(data)
        directory.mkdir(exist_ok=True)
        (directory / "config.pbtxt").write_text(config)
        return directory

    return write


CoreMaker = Callable[..., ServingCore]


@pytest.fixture
def new_core(repository: Path, loader: FakeLoader, scripted: ScriptedBackend, tmp_path: Path) -> Iterator[CoreMaker]:
    """Makes started cores over the repository, EXPLICIT unless told otherwise; stops them in the end."""
    cores: list[ServingCore] = []

    def make(*, start: bool = True, **options: Any) -> ServingCore:
        settings: dict[str, Any] = {
            "repositories": (str(repository),),
            "control_mode": ControlMode.EXPLICIT,
            "repoagent_directory": None,
            "workspace_directory": tmp_path / "workspace",
            "cache_directory": tmp_path / "cache",
            "exit_timeout_seconds": 10,
        }
        registry = BackendRegistry()
        registry.add("scripted", scripted)
        core = ServingCore(
            CoreOptions(**{**settings, **options}),
            loader=loader,  # type: ignore[arg-type]
            backends=registry,
        )
        cores.append(core)
        if start:
            core.start()
        return core

    yield make
    for core in cores:
        core.stop()


def ensemble_text(
    *steps: tuple[str, Mapping[str, str], Mapping[str, str]],
    inputs: Sequence[str] = ("x",),
    outputs: Sequence[str] = ("y",),
    optional: Sequence[str] = (),
    settings: str = "",
) -> str:
    """The configuration of an ensemble over FP32[-1,4]; each step is (model, input map, output map)."""

    def tensors(kind: str, names: Sequence[str]) -> str:
        return "".join(
            f'{kind} {{ name: "{name}" data_type: TYPE_FP32 dims: [-1, 4]{" optional: true" * (name in optional)} }}\n'
            for name in names
        )

    def pairs(kind: str, mapping: Mapping[str, str]) -> str:
        return "".join(f'{kind} {{ key: "{key}" value: "{value}" }} ' for key, value in mapping.items())

    def step(model: str, given: Mapping[str, str], made: Mapping[str, str]) -> str:
        name, _, version = model.partition(":")
        return (
            f'step {{ model_name: "{name}" model_version: {version or -1} '
            f"{pairs('input_map', given)}{pairs('output_map', made)}}}\n"
        )

    body = "".join(step(*item) for item in steps)
    return (
        f'platform: "ensemble"\n{settings}\n{tensors("input", inputs)}{tensors("output", outputs)}'
        f"ensemble_scheduling {{ {body} }}"
    )


@pytest.fixture
def ensemble_config() -> Callable[..., str]:
    return ensemble_text
