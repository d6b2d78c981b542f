"""What one request may cost: system calls, hops between threads, copies. Counted, never timed.

docs/measurements/request.md has the steps behind these numbers.
"""

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from h2.connection import H2Connection
from h2.events import DataReceived, TrailersReceived
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.grpc.frontend import GrpcFrontend
from repoagent_server.handlers.inference import Served
from repoagent_server.handlers.shared_memory import Regions
from repoagent_server.http.api import api_service
from repoagent_server.http.frontend import Endpoint, HttpFrontend
from repoagent_server.shared.grpc_options import GrpcOptions

from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor

COUNT = 400
CALLS = {"json": 118, "binary": 120, "grpc": 121, "process": 161}
"""How many functions of this project may be called for one request to a Python model, by the way it comes. Python 3.12
counts fewer: there a comprehension is none."""
FILES = {"json": 28, "binary": 28, "grpc": 28, "process": 33}
"""In how many files at most."""
# What else the process reads and writes meanwhile: pytest's workers talk to their master.
SLACK = 0.25
_MODEL = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        given = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", array)]) for array in given]
"""
_CONFIG = """
backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: [16] } output { name: "y" data_type: TYPE_FP32 dims: [16] }
"""
_OWN_PROCESS = 'parameters { key: "EXECUTION" value { string_value: "process" } }'
_VALUES = np.arange(16, dtype=np.float32)
Ask = Callable[[], None]


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingCore]:
    folder = tmp_path_factory.mktemp("budget")
    (folder / "m" / "1").mkdir(parents=True)
    (folder / "m" / "1" / "model.py").write_text(_MODEL)
    (folder / "m" / "config.pbtxt").write_text(_CONFIG)
    options = CoreOptions(repositories=(str(folder),), control_mode=ControlMode.NONE, repoagent_directory=None)
    with ServingCore(options) as core:
        yield core


@pytest.fixture
def regions() -> Iterator[Regions]:
    regions = Regions(allowed=False)
    yield regions
    regions.close()


@pytest.fixture
def http(core: ServingCore, regions: Regions) -> Iterator[tuple[str, int]]:
    front = HttpFrontend(Endpoint(port=0), api_service(Served(core, regions=regions)))
    with ExitStack() as stack:
        stack.callback(front.stop)
        front.start()
        yield front.bind()


def _json() -> tuple[bytes, str]:
    data = ",".join(str(value) for value in _VALUES)
    return b'{"inputs":[{"name":"x","datatype":"FP32","shape":[16],"data":[%s]}]}' % data.encode(), ""


def _binary() -> tuple[bytes, str]:
    head = (
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[16],"parameters":{"binary_data_size":64}}],'
        b'"parameters":{"binary_data_output":true}}'
    )
    return head + _VALUES.tobytes(), f"Inference-Header-Content-Length: {len(head)}\r\n"


def _http_asker(connection: socket.socket, body: bytes, more: str) -> Ask:
    head = f"POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    request = head.encode() + body

    def ask() -> None:
        connection.sendall(request)  # The client's own calls are send and recv, which are not counted as reads.
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")

    return ask


def _calls() -> tuple[int, int]:
    """How many reads and writes this process has made."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["syscr"]), int(fields["syscw"])


def _each(ask: Ask) -> tuple[float, float]:
    for _ in range(50):
        ask()
    before = _calls()
    for _ in range(COUNT):
        ask()
    reads, writes = (after - earlier for after, earlier in zip(_calls(), before, strict=True))
    return reads / COUNT, writes / COUNT


@pytest.mark.parametrize("form", [_json, _binary])
def test_http_reads_and_writes_once_for_the_client_and_once_for_the_model_s_thread(
    http: tuple[str, int], form: Callable[[], tuple[bytes, str]]
) -> None:
    with socket.create_connection(http, timeout=60) as connection:
        reads, writes = _each(_http_asker(connection, *form()))
    assert reads <= 2 + SLACK
    assert writes <= 2 + SLACK


@contextlib.contextmanager
def _counted_calls() -> Iterator[Counter[str]]:
    """The calls of this project's functions on threads that begin meanwhile, by name; clear it to begin."""
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and str(frame.f_globals.get("__name__")).startswith("repoagent"):
            calls[f"{frame.f_globals['__name__']}:{frame.f_code.co_qualname}"] += 1

    threading.setprofile(note)
    try:
        yield calls
    finally:
        threading.setprofile(None)


def _message() -> bytes:
    tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[16])
    message = pb.ModelInferRequest(model_name="m", inputs=[tensor], raw_input_contents=[_VALUES.tobytes()])
    return message.SerializeToString()


@pytest.mark.parametrize("form", ["json", "binary", "grpc", "process"])
def test_a_request_calls_no_more_functions_than_its_budget_has(tmp_path: Path, regions: Regions, form: str) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.py").write_text(_MODEL)
    (tmp_path / "m" / "config.pbtxt").write_text(_CONFIG + (_OWN_PROCESS if form == "process" else ""))
    options = CoreOptions(repositories=(str(tmp_path),), control_mode=ControlMode.NONE, repoagent_directory=None)
    with _counted_calls() as calls, ExitStack() as stack:
        core = stack.enter_context(ServingCore(options))
        front: HttpFrontend | GrpcFrontend
        if form == "grpc":
            front = GrpcFrontend(Served(core, allow_load_parameters=False, regions=regions), GrpcOptions(port=0))
        else:
            front = HttpFrontend(Endpoint(port=0), api_service(Served(core, regions=regions)))
        stack.callback(front.stop)
        front.start()
        connection = stack.enter_context(socket.create_connection(front.bind(), timeout=60))
        body, more = _binary() if form == "binary" else _json()
        ask = _GrpcClient(connection, _message()).ask if form == "grpc" else _http_asker(connection, body, more)
        for _ in range(50):
            ask()
        calls.clear()
        for _ in range(COUNT):
            ask()
        found = {name: count / COUNT for name, count in calls.items()}
    # Not those of a client's rare frames, or of a thread that gives memory back after the load.
    modules = {name.partition(":")[0] for name, count in found.items() if count > SLACK}
    print(f"calls of a request, {form}: {sum(found.values()):.0f} in {len(modules)} files")  # `make measure` shows it
    assert sum(found.values()) <= CALLS[form] + 1, sorted(found.items(), key=lambda entry: -entry[1])
    assert len(modules) <= FILES[form], sorted(modules)
    # The answer to the only call there is waits for no others, which would take the loop another turn.
    assert sum(count for name, count in found.items() if name.endswith(":Connections.write_soon")) <= SLACK


class _GrpcClient:
    """Calls over one connection, by nothing but send and recv."""

    def __init__(self, connection: socket.socket, message: bytes) -> None:
        self._connection = connection
        self._body = bytes([0]) + len(message).to_bytes(4, "big") + message
        self._http2 = H2Connection()
        self._http2.initiate_connection()

    def ask(self) -> None:
        stream = self._http2.get_next_available_stream_id()
        path = "/inference.GRPCInferenceService/ModelInfer"
        head = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost", "te": "trailers"}
        self._http2.send_headers(stream, [*head.items(), ("content-type", "application/grpc")])
        self._http2.send_data(stream, self._body, end_stream=True)
        status = ""
        while not status:
            self._connection.sendall(self._http2.data_to_send())
            for event in self._http2.receive_data(self._connection.recv(65536)):
                if isinstance(event, DataReceived):
                    self._http2.acknowledge_received_data(event.flow_controlled_length, stream)
                if isinstance(event, TrailersReceived):
                    status = dict(event.headers)[b"grpc-status"].decode()
        assert status == "0"


def test_grpc_reads_and_writes_as_often_as_http(core: ServingCore, regions: Regions) -> None:
    front = GrpcFrontend(Served(core, allow_load_parameters=False, regions=regions), GrpcOptions(port=0))
    with ExitStack() as stack:
        stack.callback(front.stop)
        front.start()
        connection = stack.enter_context(socket.create_connection(front.bind(), timeout=60))
        reads, writes = _each(_GrpcClient(connection, _message()).ask)
    assert reads <= 2 + SLACK
    assert writes <= 2 + SLACK


def _switches() -> dict[str, int]:
    """How often each thread of this process has waited for something."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # It has just ended.
            fields = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
            found[task.name] = int(fields["voluntary_ctxt_switches"])
    return found


@pytest.mark.slow
def test_a_request_to_a_model_s_process_wakes_the_front_end_s_loop_and_no_other_thread(
    tmp_path: Path, regions: Regions
) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.py").write_text(_MODEL)
    (tmp_path / "m" / "config.pbtxt").write_text(_CONFIG + _OWN_PROCESS)
    options = CoreOptions(repositories=(str(tmp_path),), control_mode=ControlMode.NONE, repoagent_directory=None)
    with ExitStack() as stack:
        core = stack.enter_context(ServingCore(options))
        front = HttpFrontend(Endpoint(port=0), api_service(Served(core, regions=regions)))
        stack.callback(front.stop)
        front.start()
        connection = stack.enter_context(socket.create_connection(front.bind(), timeout=60))
        ask = _http_asker(connection, *_json())
        for _ in range(50):
            ask()
        before = _switches()
        for _ in range(COUNT):
            ask()
        waits = {name: count - before.get(name, 0) for name, count in _switches().items()}
        (loop,) = [str(thread.native_id) for thread in threading.enumerate() if thread.name == "http"]
        waits.pop(str(threading.get_native_id()))  # the client's
    assert waits.pop(loop) <= (2 + SLACK) * COUNT  # for the request, and for the process's answer
    assert sum(waits.values()) <= SLACK * COUNT


def test_a_caller_that_waits_executes_on_its_own_thread_and_nothing_is_copied(core: ServingCore) -> None:
    from_model: list[np.ndarray] = []

    def ask() -> None:
        response = core.infer(InferRequest(Asked("m", {"x": Tensor.of(_VALUES)})))
        from_model.append(response.outputs["y"].array)

    before = set(threading.enumerate())  # those of earlier tests may end meanwhile
    reads, writes = _each(ask)
    assert set(threading.enumerate()) <= before
    assert max(reads, writes) <= SLACK
    assert all(np.shares_memory(array, _VALUES) for array in from_model)
