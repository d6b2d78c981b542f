"""What each fast path of the front ends saves: the server's time per request with it switched off, in one run.

    python benchmarks/fast_paths.py                     # a table; every row is one fast path, switched off
    python benchmarks/fast_paths.py --rounds 20 --only "head cache, joint writes"

A server process per row serves the same ONNX models over HTTP and gRPC, of 16, 512 and 262,144 numbers.
All run from the start to the end, and take turns: a round sends each of them the same requests, over one connection or
over eight at once, and reads from the kernel how long its threads have computed. So neither the client nor what else
the machine does counts.

A row shows, in percent, how much more a request costs without that fast path than with all of them, which is the first
row. Each figure is the least of all rounds: whatever disturbs a round only adds to it. The second row has them all as
well: what it shows is noise.
"""

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np
from loads import METHOD, message, numbers, payload, request_of
from measures import clock_of, least_costs, options_of, table
from onnx_models import WIDTHS, write_wide_models
from repoagent_server import KServeGrpc, KServeHttp
from repoagent_server.codec.request_templates import NumberList, RequestTemplates
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.grpc.known_requests import KnownRequests
from repoagent_server.grpc.response import ResponseWriter, infer_message
from repoagent_server.http.connection import HttpConnection
from repoagent_server.http.reader import RequestReader
from repoagent_server.shared.connections import Connections
from servers import piped

from repoagent.server import Server


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

    request_templates.float_parser = lambda: None


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


def main() -> int:
    options = options_of(
        __doc__,
        rounds=(80, "how often each server has its turn, per column"),
        requests=(64, "requests of a turn"),
        only=("", "the fast paths to switch off, with commas; default: each"),
        serve=str,
        models=str,
    )
    if options.serve is not None:
        serve(options.serve, Path(options.models))
        return 0
    only = [name.strip() for name in options.only.split(",")]
    chosen = [name for name in SWITCHES if not options.only or name in ("all", "all again", *only)]
    loads, costs = workloads(), []
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        write_wide_models(Path(scratch))
        command = [sys.executable, __file__, "--models", scratch, "--serve"]
        subjects = {name: stack.enter_context(piped([*command, name])) for name in chosen}
        clocks = {name: partial(clock_of, pid) for name, (pid, _) in subjects.items()}
        for load in loads:
            with ExitStack() as clients:
                begin = grpc_client if load.grpc else http_client
                turns = {name: begin(ports[load.grpc], load, clients) for name, (_, ports) in subjects.items()}
                costs.append(least_costs(turns, clocks, options.rounds, options.requests, load.connections * 2))
    print(f"{os.cpu_count()} cores; us of the server per request, and percent more without a fast path")
    rows = []
    for name in chosen:
        cells = []
        for cost in costs:
            base = min(cost["all"], cost["all again"])
            cells.append(f"{base:.1f} us" if name == "all" else f"{cost[name] / base * 100 - 100:+.1f} %")
        rows.append(["(none)" if name == "all" else name, *cells])
    print(table(("without", *(load.title for load in loads)), rows))
    return 0


def serve(name: str, models: Path) -> None:
    """Be the server of a row until the standard input ends."""
    SWITCHES[name]()
    with Server(model_repository=str(models)) as server:
        front = KServeHttp(server, KServeHttp.Options(port=0))
        remote = KServeGrpc(server, KServeGrpc.Options(port=0))
        with front, remote:
            print(json.dumps([front.address[1], remote.address[1]]), flush=True)
            sys.stdin.read()


def workloads() -> list[Workload]:
    """The columns."""

    def http(model: str, form: str) -> bytes:
        return request_of(payload(model, form, numbers(WIDTHS[model])))

    as_perf_analyzer = pb.ModelInferRequest.FromString(message("add", numbers(16)))
    as_perf_analyzer.id = "17"
    as_perf_analyzer.parameters["triton_enable_empty_final_response"].bool_param = True
    wide, large = (message(name, numbers(WIDTHS[name])) for name in ("wide", "large"))
    return [
        *(
            Workload(f"JSON {WIDTHS[model]} x{count}", count, http(model, "json"))
            for model, count in (("add", 1), ("add", 8), ("wide", 1))
        ),
        *(Workload(f"binary 512 x{count}", count, http("wide", "binary")) for count in (1, 8)),
        *(Workload(f"gRPC 512 x{count}", count, wide, grpc=True) for count in (1, 8)),
        Workload("gRPC as p. a. x8", 8, as_perf_analyzer.SerializeToString(), grpc=True),
        Workload("gRPC 1 MiB x1", 1, large, grpc=True),
    ]


def http_client(port: int, load: Workload, stack: ExitStack) -> Callable[[int], None]:
    """What sends as many requests, ``load.connections`` at a time."""
    addresses = [("127.0.0.1", port)] * load.connections
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


def grpc_client(port: int, load: Workload, stack: ExitStack) -> Callable[[int], None]:
    """The same over gRPC."""
    calls = []
    for index in range(load.connections):
        channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=[("repoagent.connection", index)])
        calls.append(stack.enter_context(channel).unary_unary(METHOD))

    def turn(requests: int) -> None:
        for _ in range(requests // load.connections):
            for future in [call.future(load.payload) for call in calls]:
                assert future.result()

    return turn


if __name__ == "__main__":
    sys.exit(main())
