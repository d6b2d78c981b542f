"""What each fast path of the front ends saves: the server's time per request with it switched off, in one run.

    python benchmarks/fast_paths.py                     # a table; every row is one fast path, switched off
    python benchmarks/fast_paths.py --rounds 20 --only "head cache" --only "stages"

A server process per row serves the same ONNX models over HTTP and gRPC, of 16, 512 and 262,144 numbers.
All run from the start to the end, and take turns: a round sends each of them the same requests, over one connection or
over eight at once, and reads from the kernel how long its threads have computed. So neither the client nor what else
the machine does counts.

A row shows, in percent, how much more a request costs without that fast path than with all of them, which is the first
row. Each figure is the least of all rounds: whatever disturbs a round only adds to it. The second row has them all as
well: what it shows is noise.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np
from onnx import helper, numpy_helper
from onnx_models import onnx_model
from repoagent_server import KServeGrpc, KServeHttp
from repoagent_server.codec.number_list import NumberList
from repoagent_server.codec.request_templates import RequestTemplates
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.grpc.known_requests import KnownRequests
from repoagent_server.grpc.response import infer_message
from repoagent_server.grpc.response_writer import ResponseWriter
from repoagent_server.http.connection import HttpConnection
from repoagent_server.http.connections import Connections
from repoagent_server.http.reader import RequestReader

from repoagent.server import Server

CONFIG: Final = 'backend: "onnxruntime" parameters { key: "intra_op_thread_count" value { string_value: "1" } }'
WIDTHS: Final = {"add": 16, "wide": 512, "large": 1 << 18}
METHOD: Final = "/inference.GRPCInferenceService/ModelInfer"


def _nothing(*_: object) -> None:
    """In the place of a method that remembers or recognises something."""


def no_request_templates() -> None:
    """Every body over HTTP is parsed and checked in full."""
    RequestTemplates.read = RequestTemplates.remember = _nothing  # type: ignore[assignment]


def no_number_lists() -> None:
    """Of a body that is like an earlier one the numbers are read as any JSON, and converted by NumPy."""
    import orjson

    def read(self: Any, text: bytes) -> Any:
        return np.array(orjson.loads(text), self._dtype).reshape(self._shape)

    NumberList.read = read  # type: ignore[method-assign]


def no_simdjson() -> None:
    """Long lists of numbers are read by orjson."""
    from repoagent_server.codec import request_templates

    request_templates.float_parser = lambda: None  # type: ignore[attr-defined]


def no_head_cache() -> None:
    """Every head is parsed."""
    RequestReader._remember = _nothing  # type: ignore[assignment]


def no_alone() -> None:
    """The answer to a request that is alone waits for the end of the loop's turn, as all others do."""
    HttpConnection.alone = property(lambda _: False)  # type: ignore[method-assign,assignment]


def no_joint_writes() -> None:
    """Each answer over HTTP is written at once."""
    Connections.write_soon = lambda _, connection: connection.flush()  # type: ignore


def no_response_frames() -> None:
    """Every answer over gRPC is a message of the library's, which writes it."""
    ResponseWriter.write = lambda _, response, stored=(): infer_message(response, stored).SerializeToString()  # type: ignore


def no_known_requests() -> None:
    """Every message over gRPC is parsed and checked in full."""
    KnownRequests.read = KnownRequests.remember = _nothing  # type: ignore[assignment]


SWITCHES: Final[Mapping[str, Callable[[], None]]] = {
    "all": _nothing,
    "all again": _nothing,
    "request templates": no_request_templates,
    "number lists": no_number_lists,
    "simdjson": no_simdjson,
    "head cache": no_head_cache,
    "alone": no_alone,
    "joint writes": no_joint_writes,
    "response frames": no_response_frames,
    "known requests": no_known_requests,
}


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of one kind, over as many connections at once."""

    title: str
    connections: int
    payload: bytes
    """A whole HTTP request, or a message for gRPC."""
    grpc: bool = False


@dataclass(frozen=True, slots=True)
class Subject:
    """A server, all whose fast paths but one are on."""

    pid: int
    http: int
    grpc: int

    def seconds(self) -> float:
        """How long its threads have computed, those that have ended too."""
        return time.clock_gettime((~self.pid << 3) | 2)  # what clock_getcpuclockid(3) returns on Linux


def main() -> int:
    options = arguments()
    if options.serve is not None:
        serve(options.serve, Path(options.models))
        return 0
    chosen = [name for name in SWITCHES if not options.only or name in ("all", "all again", *options.only)]
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        write_models(Path(scratch) / "models")
        subjects = {name: stack.enter_context(started(name, Path(scratch))) for name in chosen}
        loads = workloads()
        costs = [measure(subjects, load, options) for load in loads]
    show(loads, costs, chosen)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=80, help="how often each server has its turn, per column")
    parser.add_argument("--requests", type=int, default=64, help="requests of a turn")
    parser.add_argument("--only", action="append", help="a fast path to switch off; default: each")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--models", help=argparse.SUPPRESS)
    return parser.parse_args()


def write_models(root: Path) -> None:
    """y = x + 1, of each width."""
    for name, width in WIDTHS.items():
        one = numpy_helper.from_array(np.ones(width, np.float32), "one")
        path = root / name / "1" / "model.onnx"
        path.parent.mkdir(parents=True)
        path.write_bytes(onnx_model([helper.make_node("Add", ["x", "one"], ["y"])], [one], width, width))
        (root / name / "config.pbtxt").write_text(CONFIG)


def serve(name: str, models: Path) -> None:
    """Be the server of a row until the standard input ends."""
    SWITCHES[name]()
    with Server(model_repository=str(models)) as server:
        front = KServeHttp(server, KServeHttp.Options(port=0))
        remote = KServeGrpc(server, KServeGrpc.Options(port=0))
        with front, remote:
            print(json.dumps([front.address[1], remote.address[1]]), flush=True)
            sys.stdin.read()


@contextmanager
def started(name: str, scratch: Path) -> Iterator[Subject]:
    """A process that serves."""
    command = [sys.executable, __file__, "--serve", name, "--models", str(scratch / "models")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        http, remote = json.loads(process.stdout.readline())
        yield Subject(process.pid, http, remote)
    finally:
        process.stdin.close()
        process.wait()


def workloads() -> list[Workload]:
    """The columns."""
    return [
        *(
            Workload(f"JSON {WIDTHS[model]} x{count}", count, http_request(model, binary=False))
            for model, count in (("add", 1), ("add", 8), ("wide", 1))
        ),
        *(Workload(f"binary 512 x{count}", count, http_request("wide", binary=True)) for count in (1, 8)),
        *(Workload(f"gRPC 512 x{count}", count, message("wide"), grpc=True) for count in (1, 8)),
        Workload("gRPC as p. a. x8", 8, message("add", as_perf_analyzer=True), grpc=True),
        Workload("gRPC 1 MiB x1", 1, message("large"), grpc=True),
    ]


def values(model: str) -> Any:
    return (np.arange(WIDTHS[model], dtype=np.float32) % 61 / 8).reshape(1, -1)


def http_request(model: str, *, binary: bool) -> bytes:
    array = values(model)
    entry: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": list(array.shape)}
    document: dict[str, Any] = {"inputs": [entry]}
    raw = array.tobytes() if binary else b""
    if binary:
        entry["parameters"] = {"binary_data_size": len(raw)}
        document["parameters"] = {"binary_data_output": True}
    else:
        entry["data"] = array.ravel().tolist()
    text = json.dumps(document).encode()
    length = f"Inference-Header-Content-Length: {len(text)}\r\n" if binary else ""
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\n{length}Content-Length: {len(text + raw)}"
    return head.encode() + b"\r\n\r\n" + text + raw


def message(model: str, *, as_perf_analyzer: bool = False) -> bytes:
    array = values(model)
    asked = pb.ModelInferRequest(model_name=model, raw_input_contents=[array.tobytes()])
    if as_perf_analyzer:
        asked.id = "17"
        asked.parameters["triton_enable_empty_final_response"].bool_param = True
    asked.inputs.add(name="x", datatype="FP32", shape=array.shape)
    return bytes(asked.SerializeToString())


def measure(subjects: Mapping[str, Subject], load: Workload, options: argparse.Namespace) -> dict[str, list[float]]:
    """Microseconds of each server per request, round by round."""
    costs: dict[str, list[float]] = {name: [] for name in subjects}
    with ExitStack() as stack:
        turns = {name: stack.enter_context(client(subject, load)) for name, subject in subjects.items()}
        for turn in turns.values():
            turn(64)
        for _ in range(options.rounds):
            for name, turn in turns.items():
                turn(load.connections * 2)  # its code is in the processor's caches again
                before = subjects[name].seconds()
                turn(options.requests)
                costs[name].append((subjects[name].seconds() - before) / options.requests * 1e6)
    return costs


@contextmanager
def client(subject: Subject, load: Workload) -> Iterator[Callable[[int], None]]:
    """What sends as many requests, ``load.connections`` at a time."""
    with ExitStack() as stack:
        yield grpc_client(subject, load, stack) if load.grpc else http_client(subject, load, stack)


def http_client(subject: Subject, load: Workload, stack: ExitStack) -> Callable[[int], None]:
    addresses = [("127.0.0.1", subject.http)] * load.connections
    connections = [stack.enter_context(socket.create_connection(address)) for address in addresses]
    connections[0].sendall(load.payload)
    time.sleep(0.1)
    size = len(connections[0].recv(1 << 20))

    def turn(requests: int) -> None:
        for _ in range(requests // load.connections):
            for connection in connections:
                connection.sendall(load.payload)
            for connection in connections:
                answer = connection.recv(size, socket.MSG_WAITALL)
                assert answer.startswith(b"HTTP/1.1 200"), answer

    return turn


def grpc_client(subject: Subject, load: Workload, stack: ExitStack) -> Callable[[int], None]:
    calls = []
    for index in range(load.connections):
        channel = grpc.insecure_channel(f"127.0.0.1:{subject.grpc}", options=[("repoagent.connection", index)])
        calls.append(stack.enter_context(channel).unary_unary(METHOD))

    def turn(requests: int) -> None:
        for _ in range(requests // load.connections):
            for future in [call.future(load.payload) for call in calls]:
                assert future.result()

    return turn


def show(loads: list[Workload], costs: list[dict[str, list[float]]], chosen: list[str]) -> None:
    print(f"{os.cpu_count()} cores; us of the server per request, and percent more without a fast path")
    print(f"{'without':18}" + "".join(f"{load.title:>15}" for load in loads))
    for name in chosen:
        cells = []
        for cost in costs:
            own, base = min(cost[name]), min(*cost["all"], *cost["all again"])
            cells.append(f"{base:.1f} us" if name == "all" else f"{own / base * 100 - 100:+.1f} %")
        print(f"{'(none)' if name == 'all' else name:18}" + "".join(f"{cell:>15}" for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
