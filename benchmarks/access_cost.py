"""What access control costs a request: the server's time per request with an access file and without, in one run.

    python benchmarks/access_cost.py

Three servers run from the start to the end and take turns: two without an access file, whose difference is noise, and
one with a file of 1000 clients. All get the same requests, with a key or with a token. The heads of requests are the
same each time, as most clients send them, or differ in one header, so that none is recognised. How long the threads of
a server have computed is read from the kernel; each figure is the least of all rounds.
"""

import hashlib
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import grpc
import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from loads import METHOD, message, numbers, payload, request_of
from measures import clock_of, least_costs, options_of, table
from onnx_models import write_wide_models
from repoagent_server import AccessFile, KServeGrpc, KServeHttp
from servers import piped

from repoagent.server import Server

OPEN: Final = "no file"
SERVERS: Final = (OPEN, "no file, again", "with a file")
KEY: Final = "ra_key"
CLIENTS: Final = 1000
ISSUER: Final = "https://login.test/"


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of one kind, over one connection."""

    title: str
    secret: str
    grpc: bool = False
    varied: bool = False
    """A header is another one each time."""


def main() -> int:
    options = options_of(
        __doc__,
        rounds=(60, "how often each server has its turn, per row"),
        requests=(200, "requests of a turn"),
        serve=str,
        folder=str,
    )
    if options.serve is not None:
        serve(options.serve, Path(options.folder))
        return 0
    rows = []
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)
        write_wide_models(folder / "models")
        token = write_access(folder)
        command = [sys.executable, __file__, "--folder", scratch, "--serve"]
        subjects = {name: stack.enter_context(piped([*command, name])) for name in SERVERS}
        clocks = {name: partial(clock_of, pid) for name, (pid, _) in subjects.items()}
        for load in (
            Workload("HTTP, key", KEY),
            Workload("HTTP, token", token),
            Workload("HTTP varied, key", KEY, varied=True),
            Workload("gRPC, key", KEY, grpc=True),
            Workload("gRPC, token", token, grpc=True),
            Workload("gRPC varied, key", KEY, grpc=True, varied=True),
        ):
            with ExitStack() as clients:
                begin = over_grpc if load.grpc else over_http
                turns = {name: begin(ports[load.grpc], load, clients) for name, (_, ports) in subjects.items()}
                costs = least_costs(turns, clocks, options.rounds, options.requests, 4)
            first = costs[OPEN]
            rows.append([load.title, f"{first:.1f} us", *(f"{costs[name] - first:+.1f} us" for name in SERVERS[1:])])
    print(f"{os.cpu_count()} cores; us of the server per request, and what is added to it")
    print(table(("", *SERVERS), rows))
    return 0


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


def serve(name: str, folder: Path) -> None:
    """Be one of the servers until the standard input ends."""
    with ExitStack() as stack:
        guards = name == SERVERS[-1]
        access = stack.enter_context(AccessFile(folder / "access.toml")).access if guards else None
        server = stack.enter_context(Server(model_repository=str(folder / "models")))
        front = stack.enter_context(KServeHttp(server, KServeHttp.Options(port=0), access=access))
        remote = stack.enter_context(KServeGrpc(server, KServeGrpc.Options(port=0), access=access))
        print(json.dumps([front.address[1], remote.address[1]]), flush=True)
        sys.stdin.read()


def over_http(port: int, load: Workload, stack: ExitStack) -> Callable[[int], None]:
    connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
    item = payload("add", "binary", numbers(16))
    common = b"\r\nUser-Agent: bench\r\nAccept: */*\r\nAuthorization: Bearer " + load.secret.encode()
    serial = count(10**9)

    def turn(requests: int) -> None:
        for _ in range(requests):
            varied = b"\r\nX-Request-Id: %d" % (next(serial) if load.varied else 10**9)
            connection.sendall(request_of(item, common + varied))
            answer = connection.recv(1 << 16)
            assert answer.startswith(b"HTTP/1.1 200"), answer

    return turn


def over_grpc(port: int, load: Workload, stack: ExitStack) -> Callable[[int], None]:
    channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{port}"))
    call: Any = channel.unary_unary(METHOD)
    body = message("add", numbers(16))
    serial = count()

    def turn(requests: int) -> None:
        for _ in range(requests):
            number = str(next(serial) if load.varied else 0)
            assert call(body, metadata=[("authorization", f"Bearer {load.secret}"), ("x-request-id", number)])

    return turn


if __name__ == "__main__":
    sys.exit(main())
