"""A Python model in a directory, the backend over it, and a core that only remembers what it was asked."""

import functools
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from repoagent.config import ModelConfig, read_text
from repoagent.errors import InternalError
from repoagent.serving.backends.python.backend import PythonBackend
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from repoagent.serving.instances.backend import BackendInstance, InstanceSpec
from repoagent.serving.requests.request import Asked, InferRequest, InferResponse
from repoagent.serving.requests.tensor import Tensor
from tests.serving.core_kit import Answers

PREFIX = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n"

CONFIG = """
name: "m" backend: "python" max_batch_size: 8
input [{ name: "x" data_type: TYPE_FP32 dims: [-1] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [-1] }]
"""


class Files:
    """A directory as the backend sees it."""

    fleeting = False

    def __init__(self, root: Path) -> None:
        self._root = root

    def bytes(self, path: str) -> bytes:
        return (self._root / path).read_bytes()

    def open(self, path: str) -> BinaryIO:
        return (self._root / path).open("rb")

    def local_path(self, path: str = "") -> Path:
        return self._root / path

    @contextmanager
    def reading(self, path: str = "") -> Iterator[Path]:
        yield self._root / path

    def exists(self, path: str) -> bool:
        return (self._root / path).exists()

    def names(self, path: str = "") -> list[str]:
        return sorted(entry.name for entry in (self._root / path).iterdir())

    def directories(self) -> list[str]:
        return [name for name in self.names() if (self._root / name).is_dir()]


class FakeCore:
    """A core with two models: "double", and "four", which doubles four requests once all of them are there."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.unanswered: list[InferRequest] = []
        """What "four" has been asked so far."""
        self.asked = threading.Event()
        """Set when a model asked whether another one is ready: a sign that it is there."""

    def submit(self, request: InferRequest) -> None:
        if request.model_name != "four":
            self._answer(request)
            return
        self.unanswered.append(request)
        if len(self.unanswered) == 4:
            for waiting in self.unanswered:
                self._answer(waiting)
            self.unanswered.clear()

    def _answer(self, request: InferRequest) -> None:
        answer = InferResponse(request.model_name, "1", id=request.asked.id)
        if request.model_name in ("double", "four"):
            answer.outputs = {"y": Tensor.of(request.inputs["x"].array * 2)}
        else:
            answer.error = InternalError(f"Request for unknown model: '{request.model_name}' is not found")
        if request.asked.parameters.get("twice"):
            request.send(answer, False)
            request.send(answer, False)
            request.send(None, True)
        else:
            request.send(answer, True)

    def cancel(self, request: InferRequest) -> None:
        request.cancel()

    def load(self, name: str, *, config: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        self.calls.append(("load", name, config, files))

    def unload(self, name: str, *, unload_dependents: bool = False, wait: bool = True) -> None:
        self.calls.append(("unload", name, unload_dependents, wait))

    def model_ready(self, name: str, version: str = "") -> bool:
        self.calls.append(("ready", name, version))
        self.asked.set()
        return name == "double"


class Running:
    """One instance of a model, and how to ask it."""

    def __init__(self, instance: BackendInstance, core: FakeCore) -> None:
        self.instance: Any = instance
        self.core = core
        self._open = True

    def close(self) -> None:
        if self._open:
            self._open = False
            self.instance.close()

    def ask(self, *arrays: Any, **fields: Any) -> list[Answers]:
        senders = [Answers() for _ in arrays]
        requests = [
            InferRequest(Asked("m", {"x": Tensor.of(np.asarray(array, np.float32))}, **fields), sender)
            for array, sender in zip(arrays, senders, strict=True)
        ]
        self.instance.execute(requests)
        return senders

    def value(self, array: Any, **fields: Any) -> Any:
        (answers,) = self.ask(array, **fields)
        assert answers.responses[0].error is None, answers.responses[0].error
        return answers.responses[0].outputs["y"].array

    def error(self, array: Any = (1.0,)) -> str:
        (answers,) = self.ask(array)
        assert answers.finals == 1
        error = answers.responses[-1].error
        assert error is not None
        return str(error)


@pytest.fixture(autouse=True)
def forked(forked_models: None) -> None:
    """Processes of models are forked; a file that has a fixture of this name starts them."""


@pytest.fixture
def write_model(tmp_path: Path) -> Callable[[str], Path]:
    """Write a model.py whose top imports the utilities as pb_utils."""

    def write(body: str, name: str = "m") -> Path:
        directory = tmp_path / name
        (directory / "1").mkdir(parents=True, exist_ok=True)
        source = "import triton_python_backend_utils as pb_utils\n" + textwrap.dedent(body)
        (directory / "1" / "model.py").write_text(source)
        return directory

    return write


@pytest.fixture
def run_model(write_model: Callable[[str], Path]) -> Any:
    """Write, load and instantiate a model, by default in this process; closed at the end of the test."""
    running: list[Running] = []

    def run(body: str, config: str = CONFIG, name: str = "m", **settings: str) -> Running:
        directory = write_model(body, name)  # type: ignore[call-arg]
        core = FakeCore()
        backend = PythonBackend({key.replace("_", "-"): value for key, value in settings.items()})
        backend.bind(core)
        model = backend.load(read_text(config), Files(directory), 1)
        running.append(Running(model.create_instance(InstanceSpec(f"{name}_0_0", "CPU")), core))
        return running[-1]

    yield run
    for entry in running:
        entry.close()


@pytest.fixture
def files_of() -> type[Files]:
    """Makes the files of a model out of its directory."""
    return Files


@pytest.fixture
def run_in_process_of_its_own(run_model: Any) -> Any:
    """As run_model, with the model in a process of its own."""
    return functools.partial(run_model, execution="process")


@pytest.fixture(params=["in-process", "process"])
def run_anywhere(run_model: Any, request: pytest.FixtureRequest) -> Any:
    """As run_model, once for each place that a model can run in."""
    return functools.partial(run_model, execution=request.param)


@pytest.fixture(params=["in-process", "process"])
def core_of(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., ServingCore]]:
    """A core with the model "m" of this code, and others by name, once for each place that models can run in."""
    cores: list[ServingCore] = []

    def start(body: str, config: str, ready_seconds: str = "60", **others: tuple[str, str]) -> ServingCore:
        repository = tmp_path / "repository"
        for name, (code, text) in {"m": (body, config), **others}.items():
            directory = repository / name / "1"
            directory.mkdir(parents=True)
            (directory.parent / "config.pbtxt").write_text(text)
            if code:
                (directory / "model.py").write_text(PREFIX + textwrap.dedent(code))
        settings = {"python": {"execution": request.param, "is-ready-timeout-seconds": ready_seconds}}
        options = CoreOptions(
            repositories=(str(repository),),
            control_mode=ControlMode.EXPLICIT,
            repoagent_directory=None,
            backend_config=settings,
        )
        cores.append(ServingCore(options))
        cores[-1].start()
        cores[-1].load("m")
        return cores[-1]

    yield start
    for core in cores:
        core.stop()


def completing(write_model: Callable[[str], Path], execution: str) -> Callable[..., ModelConfig]:
    def completed(body: str, config: str = 'name: "m"') -> ModelConfig:
        parsed = read_text(config)
        backend = PythonBackend({"execution": execution})
        backend.bind(FakeCore())
        backend.auto_complete(parsed, Files(write_model(body)), 1)
        return parsed

    return completed


@pytest.fixture
def complete(write_model: Callable[[str], Path]) -> Callable[..., ModelConfig]:
    """Auto-complete a configuration by a model's own function, in this process."""
    return completing(write_model, "in-process")


@pytest.fixture
def complete_in_process_of_its_own(write_model: Callable[[str], Path]) -> Callable[..., ModelConfig]:
    """The same, in a process of its own."""
    return completing(write_model, "process")


@pytest.fixture(params=["in-process", "process"])
def complete_anywhere(write_model: Callable[[str], Path], request: pytest.FixtureRequest) -> Callable[..., ModelConfig]:
    """The same, once for each place that a model can run in."""
    return completing(write_model, request.param)
