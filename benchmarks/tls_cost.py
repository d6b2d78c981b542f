"""What TLS costs: server time per request and per connection with it and without, and answers during a flood of
handshakes, beside other servers in one run.

    python benchmarks/tls_cost.py

Each server runs from the start to the end, with a plain port and one with TLS; the ports take turns. How long a server
has computed is read from the kernel; each figure is the least of all rounds. The peers: an echo on uvicorn, nginx with
a fixed answer (if it is installed; Debian: apt install nginx-light), and for gRPC the transport of grpcio, which has
TLS of its own in C. At the end clients in other processes make handshakes as fast as they can, while one client asks on
a connection that was open before; its waiting time is printed with the flood and without.
"""

import argparse
import json
import os
import shutil
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from loads import METHOD, message, numbers, payload, request_of
from measures import clock_of, least_costs, options_of
from onnx_models import write_wide_models
from repoagent_server import KServeGrpc, KServeHttp
from servers import HERE, free_ports, piped, running, wait_until_ready

from repoagent.server import Server

KINDS: Final = {"ECDSA P-256": "ec -pkeyopt ec_paramgen_curve:P-256", "RSA 2048": "rsa:2048"}
FIXED: Final = "x" * 200
REQUEST: Final = request_of(payload("add", "binary", numbers(16)))
HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""How a client of HTTP/2 begins: the preface, and settings that change nothing."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A server: its processes, and the plain port and the one with TLS of a protocol."""

    name: str
    pids: Sequence[int]
    plain: int
    tls: int
    grpc: bool = False

    def seconds(self) -> float:
        """How long its threads have computed."""
        return sum(map(clock_of, self.pids))


def main() -> int:
    options = options_of(
        __doc__,
        rounds=(30, "how often each port has its turn"),
        requests=(200, "requests of a turn"),
        flooders=(2, "processes that make handshakes"),
        serve=str,
        flood=int,
    )
    if options.serve is not None:
        serve(Path(options.serve))
        return 0
    if options.flood is not None:
        flood(options.flood)
        return 0
    print(f"{os.cpu_count()} cores; us of the server; {ssl.OPENSSL_VERSION}")
    for kind, key in KINDS.items():
        with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
            folder = Path(scratch)
            make_certificate(folder, key)
            write_wide_models(folder / "models")
            subjects = [*stack.enter_context(ours(folder)), *stack.enter_context(peers(folder))]
            print(f"\n{kind}\n{'':34}{'plain':>10}{'TLS':>10}{'ratio':>8}{'added':>10}")
            for subject in subjects:
                if key.startswith("ec"):
                    compare(subject, "a request", asking, options.requests, options)
                compare(subject, "a connection", connecting, options.requests // 4, options)
            flooded([subject for subject in subjects if not subject.grpc], options)
    return 0


def make_certificate(folder: Path, key: str) -> None:
    command = f"openssl req -x509 -nodes -days 2 -newkey {key} -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    files = ["-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt")]
    subprocess.run([*command.split(), *files], check=True, capture_output=True)


# The servers.


def serve(folder: Path) -> None:
    """Be this project's server until the standard input ends."""
    files: dict[str, Any] = {
        "use_ssl": True,
        "server_cert": str(folder / "tls.crt"),
        "server_key": str(folder / "tls.key"),
    }
    with ExitStack() as stack:
        server = stack.enter_context(Server(model_repository=str(folder / "models")))
        ports = []
        none: dict[str, Any] = {}
        for more in (none, files):
            front = stack.enter_context(KServeHttp(server, KServeHttp.Options(port=0, **more)))
            ports.append(front.address[1])
        for transport in ("builtin", "grpcio"):
            for more in (none, files):
                options = KServeGrpc.Options(port=0, transport=transport, **more)
                ports.append(stack.enter_context(KServeGrpc(server, options)).address[1])
        print(json.dumps(ports), flush=True)
        sys.stdin.read()


@contextmanager
def ours(folder: Path) -> Iterator[list[Subject]]:
    with piped([sys.executable, __file__, "--serve", str(folder)]) as (pid, ports):
        http, https, own, own_tls, other, other_tls = ports
        yield [
            Subject("HTTP, repoagent", (pid,), http, https),
            Subject("gRPC, repoagent", (pid,), own, own_tls, True),
            Subject("gRPC, grpcio transport", (pid,), other, other_tls, True),
        ]


@contextmanager
def peers(folder: Path) -> Iterator[list[Subject]]:
    with ExitStack() as stack:
        found = [stack.enter_context(uvicorn(folder))]
        program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
        if program is not None:
            found.append(stack.enter_context(nginx(program, folder)))
        else:
            print("nginx is not installed: left out")
        yield found


@contextmanager
def uvicorn(folder: Path) -> Iterator[Subject]:
    plain, tls = ports = free_ports(2)
    base = [sys.executable, "-m", "uvicorn", "echoes:app", "--loop=uvloop", "--http=httptools", "--lifespan=off"]
    base += ["--log-level=critical", "--no-access-log", f"--app-dir={HERE}"]
    files = [f"--ssl-certfile={folder / 'tls.crt'}", f"--ssl-keyfile={folder / 'tls.key'}"]
    with ExitStack() as stack:
        pids = []
        for port, more in zip(ports, ([], files), strict=True):
            log = folder / f"uvicorn-{port}.log"
            process = stack.enter_context(running([*base, f"--port={port}", *more], log))
            wait_until_ready(process, log, port, "")
            pids.append(process.pid)
        yield Subject("HTTP, uvicorn (echo)", pids, plain, tls)


@contextmanager
def nginx(program: str, folder: Path) -> Iterator[Subject]:
    plain, tls = free_ports(2)
    site = f"location / {{ return 200 '{FIXED}'; }}"
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log /dev/null;\n"
        f"events {{ worker_connections 4096; }}\nhttp {{ access_log off; keepalive_requests 1000000;\n"
        f"client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;\n"
        f"uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;\n"
        f"server {{ listen 127.0.0.1:{plain}; {site} }}\n"
        f"server {{ listen 127.0.0.1:{tls} ssl; ssl_certificate {folder}/tls.crt; ssl_certificate_key {folder}/tls.key;"
        f" {site} }} }}\n"
    )
    command = [program, "-c", str(config), "-p", str(folder), "-g", f"user {os.environ.get('USER', 'root')};"]
    with running(command, folder / "nginx.log") as process:
        wait_until_ready(process, folder / "nginx.log", tls, "")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield Subject("HTTP, nginx (fixed answer)", [int(pid) for pid in children], plain, tls)


# The clients.


def trusting_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


CONTEXT: Final = trusting_context()


def connected(port: int, tls: bool, protocol: str = "http/1.1") -> socket.socket:
    plain = socket.create_connection(("127.0.0.1", port))
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not tls:
        return plain
    CONTEXT.set_alpn_protocols([protocol])
    return CONTEXT.wrap_socket(plain, server_hostname="localhost")


def asking(subject: Subject, tls: bool, stack: ExitStack) -> Callable[[int], object]:
    """Small requests on one connection, each after the answer to the one before."""
    if subject.grpc:
        return asking_grpc(subject, tls, stack)
    connection = stack.enter_context(connected(subject.tls if tls else subject.plain, tls))
    request = REQUEST

    def turn(requests: int) -> None:
        for _ in range(requests):
            connection.sendall(request)
            answer = connection.recv(1 << 16)
            while not complete(answer):
                answer += connection.recv(1 << 16)

    return turn


def complete(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    if not end:
        return False
    assert head.startswith(b"HTTP/1.1 200"), answer
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return len(body) >= int(length.partition(b":")[2])


def asking_grpc(subject: Subject, tls: bool, stack: ExitStack) -> Callable[[int], object]:
    address = f"localhost:{subject.tls if tls else subject.plain}"
    if tls:
        pem = ssl.get_server_certificate(("127.0.0.1", subject.tls)).encode()
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(pem))
    else:
        channel = grpc.insecure_channel(address)
    call: Any = stack.enter_context(channel).unary_unary(METHOD)
    body = message("add", numbers(16))

    def turn(requests: int) -> None:
        for _ in range(requests):
            assert call(body)

    return turn


def connecting(subject: Subject, tls: bool, _: ExitStack) -> Callable[[int], object]:
    """Connections with one request (of gRPC: with the server's settings) each; with TLS, a full handshake each."""
    port = subject.tls if tls else subject.plain
    protocol, first = ("h2", HELLO) if subject.grpc else ("http/1.1", REQUEST)

    def turn(connections: int) -> None:
        for _ in range(connections):
            with connected(port, tls, protocol) as connection:
                connection.sendall(first)
                assert connection.recv(1 << 16)

    return turn


Begin = Callable[[Subject, bool, ExitStack], Callable[[int], object]]


def compare(subject: Subject, what: str, begin: Begin, count: int, options: argparse.Namespace) -> None:
    """Print what one of ``count`` things costs the server, plain and with TLS."""
    with ExitStack() as stack:
        turns = {tls: begin(subject, tls, stack) for tls in (False, True)}
        costs = least_costs(turns, dict.fromkeys(turns, subject.seconds), options.rounds, count, 4)
    plain, secured = costs[False], costs[True]
    row = f"{plain:>10.1f}{secured:>10.1f}{secured / plain:>8.2f}{secured - plain:>+10.1f}"
    print(f"{subject.name + ': ' + what:34}{row}"[:90], flush=True)


# Many handshakes.


def flood(port: int) -> None:
    """Make handshakes until the process is ended."""
    while True:
        connected(port, True).close()


def flooded(subjects: Sequence[Subject], options: argparse.Namespace) -> None:
    """Print how long a client waits on an open connection, alone and during a flood of handshakes."""
    print(f"{'an answer on an open connection':34}{'alone':>10}{'flooded':>10}{'ratio':>8}   (99th percentile, ms)")
    for subject in subjects:
        with ExitStack() as stack:
            turn = asking(subject, True, stack)
            alone = percentile(turn)
            command = [sys.executable, __file__, "--flood", str(subject.tls)]
            processes = [subprocess.Popen(command) for _ in range(options.flooders)]
            try:
                time.sleep(1)
                during = percentile(turn)
            finally:
                for process in processes:
                    process.kill()
                    process.wait()
        print(f"{subject.name:34}{alone:>10.2f}{during:>10.2f}{during / alone:>8.1f}", flush=True)


def percentile(turn: Callable[[int], object], seconds: float = 3.0) -> float:
    """The 99th, in milliseconds, of single requests."""
    times, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        turn(1)
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.quantiles(times, n=100)[98]


if __name__ == "__main__":
    sys.exit(main())
