"""What access control costs a request: the server's time per request with an access file and without, in one run.

    python benchmarks/access_cost.py

Three servers run from the start to the end and take turns: two without an access file, whose difference is noise, and
one with a file of 1000 clients. All get the same requests, with a key or with a token. The heads of requests are the
same each time, as most clients send them, or differ in one header, so that none is recognised. How long the threads of
a server have computed is read from the kernel; each figure is the least of all rounds.
"""

import argparse
import hashlib
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
from itertools import count
from pathlib import Path
from typing import Any, Final

import grpc
import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from fast_paths import METHOD, Subject, http_request, message, write_models
from jwt.algorithms import RSAAlgorithm
from repoagent_server import AccessFile, KServeGrpc, KServeHttp

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
    options = arguments()
    if options.serve is not None:
        serve(options.serve, Path(options.folder))
        return 0
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)
        write_models(folder / "models")
        token = write_access(folder)
        subjects = {name: stack.enter_context(started(name, folder)) for name in SERVERS}
        loads = [
            Workload("HTTP, key", KEY),
            Workload("HTTP, token", token),
            Workload("HTTP varied, key", KEY, varied=True),
            Workload("gRPC, key", KEY, grpc=True),
            Workload("gRPC, token", token, grpc=True),
            Workload("gRPC varied, key", KEY, grpc=True, varied=True),
        ]
        print(f"{os.cpu_count()} cores; us of the server per request, and what is added to it")
        print(f"{'':18}" + "".join(f"{name:>16}" for name in SERVERS))
        for load in loads:
            costs = {name: min(times) for name, times in measure(subjects, load, options).items()}
            first = costs[OPEN]
            cells = [f"{first:.1f} us", *(f"{costs[name] - first:+.1f} us" for name in SERVERS[1:])]
            print(f"{load.title:18}" + "".join(f"{cell:>16}" for cell in cells), flush=True)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="how often each server has its turn, per row")
    parser.add_argument("--requests", type=int, default=200, help="requests of a turn")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


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


@contextmanager
def started(name: str, folder: Path) -> Iterator[Subject]:
    """A process that serves."""
    command = [sys.executable, __file__, "--serve", name, "--folder", str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        http, remote = json.loads(process.stdout.readline())
        yield Subject(process.pid, http, remote)
    finally:
        process.stdin.close()
        process.wait()


def measure(subjects: Mapping[str, Subject], load: Workload, options: argparse.Namespace) -> dict[str, list[float]]:
    """Microseconds of each server per request, round by round."""
    costs: dict[str, list[float]] = {name: [] for name in subjects}
    with ExitStack() as stack:
        begin = over_grpc if load.grpc else over_http
        turns = {name: begin(subject, load, stack) for name, subject in subjects.items()}
        for turn in turns.values():
            turn(100)
        for _ in range(options.rounds):
            for name, turn in turns.items():
                turn(4)
                before = subjects[name].seconds()
                turn(options.requests)
                costs[name].append((subjects[name].seconds() - before) / options.requests * 1e6)
    return costs


def over_http(subject: Subject, load: Workload, stack: ExitStack) -> Callable[[int], None]:
    connection = stack.enter_context(socket.create_connection(("127.0.0.1", subject.http)))
    head, _, body = http_request("add", binary=True).partition(b"\r\n\r\n")
    head += b"\r\nUser-Agent: bench\r\nAccept: */*\r\nAuthorization: Bearer " + load.secret.encode()
    numbers = count(10**9)

    def turn(requests: int) -> None:
        for _ in range(requests):
            more = b"\r\nX-Request-Id: %d" % (next(numbers) if load.varied else 10**9)
            connection.sendall(head + more + b"\r\n\r\n" + body)
            answer = connection.recv(1 << 16)
            assert answer.startswith(b"HTTP/1.1 200"), answer

    return turn


def over_grpc(subject: Subject, load: Workload, stack: ExitStack) -> Callable[[int], None]:
    channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{subject.grpc}"))
    call: Any = channel.unary_unary(METHOD)
    payload = message("add")
    numbers = count()

    def turn(requests: int) -> None:
        for _ in range(requests):
            number = str(next(numbers) if load.varied else 0)
            assert call(payload, metadata=[("authorization", f"Bearer {load.secret}"), ("x-request-id", number)])

    return turn


if __name__ == "__main__":
    sys.exit(main())
