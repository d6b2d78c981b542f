"""Inference requests per second of repoagent beside MLServer, and beside a Triton if there is one, in the same run.

    python benchmarks/serving_peers.py --mlserver .venvs/mlserver/bin/mlserver
    python benchmarks/serving_peers.py --write-models DIR       # what a Triton is to serve (backend onnxruntime)
    python benchmarks/serving_peers.py --triton-http HOST:8000 --triton-grpc HOST:8001

The models, inputs and generators are those of http_infer.py and grpc_infer.py. MLServer runs the same ONNX files on
ONNX Runtime, in one process (``parallel_workers`` 0). The addresses of a Triton can also be given by the environment:
REPOAGENT_TRITON_HTTP and REPOAGENT_TRITON_GRPC. A peer that is not there prints MISSING, one that does not answer a
form of request prints "refused"; the exit status is 1 if one is missing. Beside them are printed figures of a stock
Triton 2.51 taken on another idle machine with two cores (a Python identity model of 16 values; HTTP with wrk, gRPC with
perf_analyzer).
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc_infer
import http_infer
import numpy as np

TRITON = {**http_infer.TRITON, "grpc": {1: 4100, 8: 8600, 32: 8000}}
FORMS = ("json", "binary", "grpc")
START_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Peer:
    """A server under load: where its HTTP and gRPC listen, None where it has none or is missing."""

    http: tuple[str, int] | None
    grpc: tuple[str, int] | None

    def address(self, form: str) -> tuple[str, int] | None:
        return self.grpc if form == "grpc" else self.http


def main() -> int:
    options = arguments()
    if options.write_models:
        http_infer.write_models(options.write_models)
        return 0
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)
        inputs = http_infer.write_models(folder / "models")
        ports = stack.enter_context(http_infer.serve_ports(folder))
        peers = {"repoagent": Peer(("127.0.0.1", ports["http"]), ("127.0.0.1", ports["grpc"]))}
        peers["MLServer"] = stack.enter_context(mlserver(options.mlserver, folder))
        peers["Triton"] = Peer(address(options.triton_http), address(options.triton_grpc))
        show_header(peers)
        for name, arrays in inputs.items():
            for form in FORMS:
                for connections in options.connections:
                    once = partial(request_rate, name, form, arrays, connections, options.seconds)
                    show_row(name, form, connections, rates(peers, form, once, options.rounds))
    return report_missing(peers)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=2, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each case; the median counts")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--mlserver", default="mlserver", help="the program, if it is not on the path")
    parser.add_argument("--triton-http", default=os.environ.get("REPOAGENT_TRITON_HTTP", ""), metavar="HOST:PORT")
    parser.add_argument("--triton-grpc", default=os.environ.get("REPOAGENT_TRITON_GRPC", ""), metavar="HOST:PORT")
    parser.add_argument("--write-models", type=Path, metavar="DIR", help="write the model repository there, and end")
    return parser.parse_args()


REMEDY = {
    "MLServer": "make bench-peers installs it",
    "Triton": "give --triton-http and --triton-grpc; --write-models writes what it is to serve",
}


def report_missing(peers: dict[str, Peer]) -> int:
    """Say which peers have no address, and how to get them; gives the exit status."""
    missing = [name for name, peer in peers.items() if peer.http is None or peer.grpc is None]
    for name in missing:
        print(f"MISSING {name}: {REMEDY[name]}")
    return 1 if missing else 0


def address(text: str) -> tuple[str, int] | None:
    host, _, port = text.rpartition(":")
    return (host, int(port)) if text else None


# MLServer.


@contextmanager
def mlserver(program: str, folder: Path) -> Iterator[Peer]:
    """A running MLServer with the models of ``folder``; without addresses if it is not installed."""
    found = shutil.which(program)
    if found is None:
        yield Peer(None, None)
        return
    home = folder / "mlserver"
    http, grpc, metrics = free_port(), free_port(), free_port()
    for model in sorted((folder / "models").iterdir()):
        write_settings(home / model.name, model.name, model / "1" / "model.onnx")
    settings = {"host": "127.0.0.1", "http_port": http, "grpc_port": grpc, "metrics_port": metrics}
    (home / "settings.json").write_text(json.dumps({**settings, "parallel_workers": 0, "debug": False}))
    log = folder / "mlserver.log"
    environment = {**os.environ, "PYTHONPATH": str(http_infer.HERE)}
    with log.open("wb") as output:
        process = subprocess.Popen([found, "start", str(home)], stdout=output, stderr=output, env=environment)
        try:
            wait_until_ready(process, http, log)
            yield Peer(("127.0.0.1", http), ("127.0.0.1", grpc))
        finally:
            process.terminate()
            process.wait(START_SECONDS)


def write_settings(home: Path, name: str, model: Path) -> None:
    home.mkdir(parents=True)
    settings = {"name": name, "implementation": "mlserver_onnx.OnnxModel", "parameters": {"uri": str(model)}}
    (home / "model-settings.json").write_text(json.dumps(settings))


def wait_until_ready(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    request = b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                connection.sendall(request)
                if connection.recv(64).startswith(b"HTTP/1.1 200"):
                    return
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"MLServer did not start:\n{log.read_text()}")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


# Load.


def request_rate(
    model: str, form: str, arrays: dict[str, np.ndarray], connections: int, seconds: int, server: tuple[str, int]
) -> float:
    host, port = server
    if form == "grpc":
        return grpc_infer.load(port, grpc_infer.message(model, arrays), connections, seconds, host)
    return http_infer.load(http_infer.payload(model, form, arrays), port, connections, seconds, host)


def rates(
    peers: dict[str, Peer], form: str, once: Callable[[tuple[str, int]], float], rounds: int
) -> dict[str, float | str]:
    """The median rate of each peer, all of them measured in turns; or what is to be printed instead."""
    found: dict[str, list[float]] = {name: [] for name in peers}
    cells: dict[str, float | str] = {}
    for _ in range(rounds):
        for name, peer in peers.items():
            server = peer.address(form)
            if server is None:
                cells[name] = "MISSING"
            elif name not in cells:
                try:
                    found[name].append(once(server))
                except SystemExit:  # the generator got something else than answers
                    cells[name] = "refused"
    return {name: cells.get(name) or statistics.median(found[name]) for name in peers}


# The table.


def show_header(peers: dict[str, Peer]) -> None:
    print(f"requests per second, {os.cpu_count()} cores shared with the generator")
    columns = ("connections", *peers, "Triton ref.")
    print(f"{'model':<14} {'form':<7}" + "".join(f"{column:>12}" for column in columns), flush=True)


def show_row(model: str, form: str, connections: int, cells: dict[str, float | str]) -> None:
    texts = [cell if isinstance(cell, str) else f"{cell:,.0f}" for cell in cells.values()]
    reference = TRITON[form].get(connections)
    texts.append(f"{reference:,}" if reference else "-")
    print(f"{model:<14} {form:<7}{connections:>12}" + "".join(f"{text:>12}" for text in texts), flush=True)


if __name__ == "__main__":
    sys.exit(main())
