"""A core without files, agents or backends, and front ends over it, for the tests of this distribution."""

import json
import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import httpx
import numpy as np
import pytest
import repoagent_server.program.program
from click.testing import CliRunner
from repoagent_server.handlers.headers import Restrictions
from repoagent_server.handlers.inference import Served
from repoagent_server.handlers.shared_memory import NO_REGIONS, Regions
from repoagent_server.http.api import api_service
from repoagent_server.http.frontend import Endpoint, HttpFrontend
from repoagent_server.http.reader import Limits
from repoagent_server.program.logs import configure
from repoagent_server.program.options import LogOptions, ServeOptions
from repoagent_server.program.serve_command import serve
from tritonclient.utils import shared_memory

from repoagent.audit import NO_AUDIT, Audit
from repoagent.errors import InternalError, InvalidArgumentError, NotFoundError, RepoAgentError
from repoagent.server.logs import ServerLog, server_log
from repoagent.serving.measuring.statistics import ExecutionTimes
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.requests.senders import answer_error
from repoagent.serving.requests.tensor import Tensor
from repoagent.serving.tracing.trace_settings import TraceSettings
from repoagent.serving.tracing.tracer import Tracer

Outputs = dict[str, Tensor]


@dataclass
class FakeReport:
    """What a load did."""

    model: str

    def to_dict(self) -> dict[str, Any]:
        return {"model": self.model, "outcome": "loaded"}

    def lines(self) -> list[str]:
        return [f"{self.model}: loaded"]


@dataclass
class FakeModel:
    """A model that computes ``run``, on another thread if ``threaded``."""

    inputs: dict[str, tuple[str, list[int]]]
    outputs: dict[str, tuple[str, list[int]]]
    run: Callable[[Mapping[str, Tensor]], Outputs]
    max_batch_size: int = 0
    threaded: bool = False


def _identity(inputs: Mapping[str, Tensor]) -> Outputs:
    return {"OUTPUT0": inputs["INPUT0"]}


def _add_sub(inputs: Mapping[str, Tensor]) -> Outputs:
    a, b = inputs["INPUT0"].array, inputs["INPUT1"].array
    return {"OUTPUT0": Tensor.of(a + b), "OUTPUT1": Tensor.of(a - b)}


def _models() -> dict[str, FakeModel]:
    return {
        "ident": FakeModel({"INPUT0": ("FP32", [-1])}, {"OUTPUT0": ("FP32", [-1])}, _identity, 8),
        "slow": FakeModel({"INPUT0": ("FP32", [-1])}, {"OUTPUT0": ("FP32", [-1])}, _identity, 8, threaded=True),
        "str": FakeModel({"INPUT0": ("BYTES", [-1])}, {"OUTPUT0": ("BYTES", [-1])}, _identity),
        "any": FakeModel({"INPUT0": ("FP16", [-1])}, {"OUTPUT0": ("FP16", [-1])}, _identity),
        "addsub": FakeModel(
            {"INPUT0": ("FP32", [4]), "INPUT1": ("FP32", [4])},
            {"OUTPUT0": ("FP32", [4]), "OUTPUT1": ("FP32", [4])},
            _add_sub,
        ),
    }


@dataclass
class FakeCore:
    """The surface of a serving core. What it is asked is kept in ``calls`` and ``requests``."""

    models: dict[str, FakeModel] = field(default_factory=_models)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    requests: list[InferRequest] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    """The model "slow" answers once this is set."""
    submitted: threading.Event = field(default_factory=threading.Event)
    responses: list[tuple[InferResponse | None, bool]] | None = None
    """If set, what every inference answers instead of its outputs."""
    tracer: Tracer = field(default_factory=lambda: Tracer(TraceSettings()))
    audit: Audit = NO_AUDIT

    def live(self) -> bool:
        return True

    def ready(self) -> bool:
        return True

    def metadata(self) -> dict[str, Any]:
        return {"name": "triton", "version": "0.1.0", "extensions": ["binary_tensor_data"]}

    def model_ready(self, name: str, version: str = "") -> bool:
        return name in self.models and version in ("", "1")

    def asks_model(self, name: str, version: str = "") -> bool:
        return False

    def model_loaded(self, name: str) -> bool:
        return name in self.models

    def decoupled(self, name: str, version: str = "") -> bool:
        return False

    def model_metadata(self, name: str, version: str = "") -> dict[str, Any]:
        model = self._find(name, version)
        batch = [-1] if model.max_batch_size else []

        def tensors(specs: dict[str, tuple[str, list[int]]]) -> list[dict[str, Any]]:
            return [{"name": n, "datatype": t, "shape": batch + s} for n, (t, s) in specs.items()]

        return {
            "name": name,
            "versions": ["1"],
            "platform": "fake",
            "inputs": tensors(model.inputs),
            "outputs": tensors(model.outputs),
        }

    def model_config(self, name: str, version: str = "") -> dict[str, Any]:
        model = self._find(name, version)
        names = {"BYTES": "TYPE_STRING"}
        return {
            "name": name,
            "max_batch_size": model.max_batch_size,
            "input": [
                {"name": n, "data_type": names.get(t, f"TYPE_{t}"), "dims": d} for n, (t, d) in model.inputs.items()
            ],
        }

    def index(self, ready_only: bool = False) -> list[dict[str, Any]]:
        self.calls.append(("index", ready_only))
        return [{"name": name, "version": "1", "state": "READY"} for name in self.models]

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        if name and name not in self.models:
            raise InvalidArgumentError(f"requested model '{name}' is not available")
        names = [name] if name else list(self.models)
        return {"model_stats": [{"name": n, "version": "1", "inference_count": 0} for n in names]}

    def load(
        self,
        name: str,
        *,
        config: str | bytes | None = None,
        files: Mapping[str, bytes] | None = None,
        version: int | None = None,
    ) -> FakeReport:
        self.calls.append(("load", name, config, files, *([] if version is None else [version])))
        if name not in self.models:
            raise InternalError(f"failed to load '{name}', failed to poll from model repository")
        return FakeReport(name)

    def unload(self, name: str, *, unload_dependents: bool = False, version: int | None = None) -> None:
        self.calls.append(("unload", name, unload_dependents, *([] if version is None else [version])))

    def report(self, name: str) -> FakeReport | None:
        return FakeReport(name) if name in self.models else None

    def attestation(self, name: str, version: str = "") -> bytes | None:
        return b'{"summary": {}, "details": {}}' if name in self.models and version in ("", "1") else None

    def check(self, request: InferRequest) -> None:
        model = self._find(request.model_name, request.asked.model_version)
        for name in request.inputs:
            if name not in model.inputs:
                raise InvalidArgumentError(f"unexpected inference input '{name}' for model '{request.model_name}'")

    def submit(self, request: InferRequest) -> None:
        try:
            self.check(request)
        except RepoAgentError as error:
            answer_error(request, error)
            return
        model = self.models[request.model_name]
        self.requests.append(request)
        if model.threaded:
            threading.Thread(target=self._answer_when_told, args=(model, request)).start()
        else:
            self._answer(model, request)

    def _answer_when_told(self, model: FakeModel, request: InferRequest) -> None:
        self.submitted.set()
        self.gate.wait(60)
        self._answer(model, request)

    def _answer(self, model: FakeModel, request: InferRequest) -> None:
        request.times = ExecutionTimes(0, 0, 0, 0)
        if self.responses is not None:
            for response, final in self.responses:
                request.send(response, final)
            return
        outputs = model.run(request.inputs)
        if request.requested_outputs:
            outputs = {name: tensor for name, tensor in outputs.items() if name in request.requested_outputs}
        request.send(InferResponse(request.model_name, "1", request.asked.id, outputs), True)

    def _find(self, name: str, version: str) -> FakeModel:
        if name not in self.models:
            raise NotFoundError(f"Request for unknown model: '{name}' is not found")
        if version not in ("", "1"):
            raise NotFoundError(f"Request for unknown model: '{name}' version {version} is not found")
        return self.models[name]


@pytest.fixture
def core() -> FakeCore:
    return FakeCore()


class Objects:
    """POSIX shared memory objects of a test. Nobody else on this machine has their keys, and they go with the test."""

    def __init__(self, stack: ExitStack) -> None:
        self.prefix = f"ra{os.getpid()}{uuid.uuid4().hex[:8]}_"
        self._stack = stack

    def key(self, name: str) -> str:
        """The key of an object."""
        return f"/{self.prefix}{name}"

    def make(self, name: str, size: int, content: bytes = b"") -> Any:
        """An object of ``size`` bytes that starts with ``content``; the client's handle of it."""
        handle = shared_memory.create_shared_memory_region(name, self.key(name), size)
        self._stack.callback(shared_memory.destroy_shared_memory_region, handle)
        if content:
            shared_memory.set_shared_memory_region(handle, [np.frombuffer(content, np.uint8)])
        return handle

    def read(self, handle: Any, dtype: Any, shape: list[int], offset: int = 0) -> Any:
        """A copy of what is in an object."""
        return shared_memory.get_contents_as_numpy(handle, dtype, shape, offset).copy()


@pytest.fixture
def objects() -> Iterator[Objects]:
    with ExitStack() as stack:
        yield Objects(stack)


StartFrontend = Callable[..., HttpFrontend]


@pytest.fixture
def start(core: FakeCore) -> Iterator[StartFrontend]:
    """Start a front end over ``core``; arguments are those of ``Limits`` and ``api_service``."""
    started: list[HttpFrontend] = []

    def start(
        *,
        allow_load_parameters: bool = False,
        restrictions: Restrictions | None = None,
        regions: Regions = NO_REGIONS,
        **limits: Any,
    ) -> HttpFrontend:
        endpoint = Endpoint(port=0, limits=Limits(**limits))
        service = api_service(
            Served(core, allow_load_parameters=allow_load_parameters, regions=regions), restrictions=restrictions
        )
        frontend = HttpFrontend(endpoint, service)
        started.append(frontend)
        frontend.start()
        return frontend

    yield start
    core.gate.set()
    for frontend in started:
        frontend.stop()


@pytest.fixture
def frontend(start: StartFrontend) -> HttpFrontend:
    return start()


@pytest.fixture
def client(frontend: HttpFrontend) -> Iterator[httpx.Client]:
    host, port = frontend.bind()
    with httpx.Client(base_url=f"http://{host}:{port}") as client:
        yield client


@pytest.fixture
def connect(frontend: HttpFrontend) -> Iterator[Callable[[], socket.socket]]:
    """Open raw connections, closed after the test."""
    opened: list[socket.socket] = []

    def connect() -> socket.socket:
        opened.append(socket.create_connection(frontend.bind(), timeout=60))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[ServeOptions]:
    """The options with which the program would have served: it serves nothing."""
    seen: list[ServeOptions] = []

    def run(options: ServeOptions) -> int:
        seen.append(options)
        return 0

    monkeypatch.setattr(repoagent_server.program.program, "run", run)
    return seen


@pytest.fixture
def parse(ran: list[ServeOptions]) -> Any:
    """What the flags given make of the options."""

    def parse(*flags: str) -> ServeOptions:
        result = CliRunner().invoke(serve, ["--model-repository", "/models", *flags])
        if result.exit_code:
            raise click.UsageError(result.output)
        return ran.pop()

    return parse


@pytest.fixture
def log() -> Iterator[ServerLog]:
    """The log of the process, as it is without flags."""
    with configure(LogOptions()):
        yield server_log()


@pytest.fixture(scope="session")
def recorded() -> dict[str, list[dict[str, Any]]]:
    """What a stock Triton 2.51.0 answered to requests about its settings, one after another, by kind.

    It was started with one model, "ident", and, for the traces that are not "without file", with ``--trace-config
    triton,file=traces.json``.
    """
    path = Path(__file__).parent / "data" / "triton_2_51_settings.json"
    found: dict[str, list[dict[str, Any]]] = json.loads(path.read_text())
    return found
