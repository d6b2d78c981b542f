"""What a request costs the server without each fast path, and with access control, beside the plain server, in one run.

    python benchmarks/fast_paths.py                        # both tables
    python benchmarks/fast_paths.py --compare access       # an access file of 1000 clients, and none
    python benchmarks/fast_paths.py --compare fast-paths --rounds 20 --only "head cache, joint writes"

A server process per row serves the same ONNX models over HTTP and gRPC, of 16, 512 and 262,144 numbers. All run from
the start to the end, and take turns: a round sends each of them the same requests, over one connection or over eight at
once, and reads from the kernel how long its threads have computed. So neither the client nor what else the machine does
counts. The first row is what a request costs, every other one what it costs more. Each figure is the least of all
rounds: whatever disturbs a round only adds to it. The second row is the same server again: what it shows is noise.

- **fast-paths**: each row is one fast path, switched off.
- **access**: requests have a key or a token. Their heads are the same each time, as most clients send them, or differ
  in one header ("varied"), so that none is recognised.
"""

import hashlib
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import grpc
import jwt
import numpy as np
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from loads import METHOD, message, numbers, payload, request_of
from measures import clock_of, least_costs, options_of, table
from onnx_models import WIDTHS, write_wide_models
from repoagent_server import AccessFile, KServeGrpc, KServeHttp
from repoagent_server.codec.request_templates import NumberList, RequestTemplates
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.grpc.known_requests import KnownRequests
from repoagent_server.grpc.response import ResponseWriter, infer_message
from repoagent_server.http.connection import HttpConnection
from repoagent_server.http.reader import RequestReader
from repoagent_server.shared.connections import Connections
from servers import piped

from repoagent.server import Server

ACCESS: Final = ("no file", "no file, again", "with a file")
KEY: Final = "ra_key"
CLIENTS: Final = 1000
ISSUER: Final = "https://login.test/"
SERIAL: Final = 10**9


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
    secret: str = ""
    """Of the client: a key or a token."""
    varied: bool = False
    """The header X-Request-Id, of requests with a secret, is another one each time."""

    def serials(self) -> Callable[[], int]:
        """The number of each request."""
        return partial(next, count(SERIAL, int(self.varied)))


def main() -> int:
    options = options_of(
        __doc__,
        compare=(["fast-paths", "access"], "only this"),
        rounds=(80, "how often each server has its turn, per column"),
        requests=(64, "requests of a turn"),
        only=("", "the fast paths to switch off, with commas; default: each"),
        serve=str,
        folder=str,
    )
    if options.serve is not None:
        serve(options.serve, Path(options.folder))
        return 0
    only = [name.strip() for name in options.only.split(",")]
    switched = [name for name in SWITCHES if not options.only or name in ("all", "all again", *only)]
    print(f"{os.cpu_count()} cores; us of the server per request, and what is added to it")
    with tempfile.TemporaryDirectory() as scratch:
        write_wide_models(Path(scratch) / "models")
        token = write_access(Path(scratch))
        tables = {"fast-paths": (switched, workloads()), "access": (ACCESS, guarded_loads(token))}
        for name in options.compare:
            names, loads = tables[name]
            print(table((name, *(load.title for load in loads)), compared(names, loads, scratch, options)))
    return 0


def compared(names: Sequence[str], loads: Sequence[Workload], folder: str, options: Any) -> list[list[str]]:
    """A row for each server; the first two are the same."""
    with ExitStack() as stack:
        command = [sys.executable, __file__, "--folder", folder, "--serve"]
        subjects = {name: stack.enter_context(piped([*command, name])) for name in names}
        clocks = {name: partial(clock_of, process.pid) for name, (process, _) in subjects.items()}
        rows = [[name] for name in names]
        for load in loads:
            with ExitStack() as clients:
                begin = grpc_client if load.grpc else http_client
                turns = {name: begin(ports[load.grpc], load, clients) for name, (_, ports) in subjects.items()}
                costs = least_costs(turns, clocks, options.rounds, options.requests, load.connections * 2)
            base = min(costs[name] for name in names[:2])
            for row in rows:
                more = costs[row[0]] - base
                row.append(f"{base:.1f} us" if row[0] == names[0] else f"{more:+.1f} us {more / base:+.1%}")
    return rows


def serve(name: str, folder: Path) -> None:
    """Be the server of a row until the standard input ends."""
    SWITCHES.get(name, _nothing)()
    with ExitStack() as stack:
        access = stack.enter_context(AccessFile(folder / "access.toml")).access if name == ACCESS[-1] else None
        server = stack.enter_context(Server(model_repository=str(folder / "models")))
        front = stack.enter_context(KServeHttp(server, KServeHttp.Options(port=0), access=access))
        remote = stack.enter_context(KServeGrpc(server, KServeGrpc.Options(port=0), access=access))
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


def guarded_loads(token: str) -> list[Workload]:
    """The columns of access control."""
    http, remote = payload("add", "binary", numbers(16)), message("add", numbers(16))
    loads = []
    for title, secret, varied in (("key", KEY, False), ("token", token, False), ("varied, key", KEY, True)):
        own = ("User-Agent: bench", "Accept: */*", f"Authorization: Bearer {secret}", f"X-Request-Id: {SERIAL}")
        request = request_of(http, "".join(f"\r\n{header}" for header in own).encode())
        loads.append(Workload(f"HTTP, {title}", 1, request, secret=secret, varied=varied))
        loads.append(Workload(f"gRPC, {title}", 1, remote, grpc=True, secret=secret, varied=varied))
    return loads


def write_access(folder: Path) -> str:
    """An access file with many clients, and a token for one of them."""
    key = rsa.generate_private_key(65537, 2048)
    public = {**RSAAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": "one"}
    (folder / "keys.json").write_text(json.dumps({"keys": [public]}))
    lines = [
        f'[issuers.corp]\nissuer = "{ISSUER}"\naudience = "m"\nalgorithms = ["RS256"]\nkey_set = "keys.json"',
        '[clients.people]\nissuer = "corp"\nmodels = ["a*"]\nrights = ["infer"]',
    ]
    for number in range(CLIENTS):
        digest = hashlib.sha256(KEY.encode() if number == 0 else str(number).encode()).hexdigest()
        lines.append(f'[clients.c{number}]\nkeys = ["sha256:{digest}"]\nmodels = ["a*", "b*"]\nrights = ["infer"]')
    (folder / "access.toml").write_text("\n".join(lines))
    claims = {"iss": ISSUER, "aud": "m", "sub": "alice", "exp": time.time() + 36000}
    return str(jwt.encode(claims, key, "RS256", headers={"kid": "one"}))


def http_client(port: int, load: Workload, stack: ExitStack) -> Callable[[int], None]:
    """What sends as many requests, ``load.connections`` at a time."""
    addresses = [("127.0.0.1", port)] * load.connections
    connections = [stack.enter_context(socket.create_connection(address)) for address in addresses]
    connections[0].sendall(load.payload)
    time.sleep(0.1)
    size = len(connections[0].recv(1 << 20))
    serial, before = load.serials(), b"%d" % SERIAL

    def turn(requests: int) -> None:
        for _ in range(requests // load.connections):
            request = load.payload.replace(before, b"%d" % serial()) if load.varied else load.payload
            for connection in connections:
                connection.sendall(request)
            for connection in connections:
                answer = connection.recv(size, socket.MSG_WAITALL)
                assert answer.startswith(b"HTTP/1.1 200"), answer

    return turn


def grpc_client(port: int, load: Workload, stack: ExitStack) -> Callable[[int], None]:
    """The same over gRPC."""
    calls: list[Any] = []
    for index in range(load.connections):
        channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=[("repoagent.connection", index)])
        calls.append(stack.enter_context(channel).unary_unary(METHOD))
    serial = load.serials()

    def turn(requests: int) -> None:
        for _ in range(requests // load.connections):
            own = [("authorization", f"Bearer {load.secret}"), ("x-request-id", str(serial()))] if load.secret else []
            for future in [call.future(load.payload, metadata=own) for call in calls]:
                assert future.result()

    return turn


if __name__ == "__main__":
    sys.exit(main())
