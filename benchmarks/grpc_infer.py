"""Inference requests per second over gRPC: both transports, and a bare echo on grpcio, in turns in one run.

    python benchmarks/grpc_infer.py                       # exit status 1 if one is under its limit
    python benchmarks/grpc_infer.py --seconds 10 --rounds 5 --connections 8

The models, their inputs and the `repoagent serve` are those of http_infer.py; tensors travel raw, as stock clients send
them. One server runs with ``--grpc-transport=builtin``, one with ``grpcio``. Beside them runs a grpc.aio server, on the
same kind of event loop, that answers each call with the bytes of its message, which it does not parse. The same
generator loads all in turns; the medians of the rates and of the rounds' ratios count. The generator runs on the same
cores as the servers, so its cost is in every figure.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from http_infer import HERE, alternating, arguments, child, serve_ports, write_models
from repoagent_server.grpc import messages_pb2 as pb

LIMIT = 1.0
"""Of the ratio of the transport of our own to grpcio's, and to the bare echo."""


def main() -> int:
    options = arguments(str(__doc__))
    results: dict[tuple[str, int], dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        messages = {name: message(name, arrays) for name, arrays in write_models(folder / "models").items()}
        with (
            serve_ports(folder, ["--grpc-transport=builtin"], name="builtin") as builtin,
            serve_ports(folder, ["--grpc-transport=grpcio"], name="grpcio") as library,
            echo(folder) as echo_port,
        ):
            ports = {"ours": builtin["grpc"], "grpcio": library["grpc"], "echo": echo_port}
            for name, body in messages.items():
                for connections in options.connections:
                    once = partial(load, body=body, connections=connections, seconds=options.seconds)
                    results[name, connections] = alternating(once, ports, options.rounds)
    show(results)
    if options.json:
        write(options, results)
    good = (min(rates["ratio"], rates["ratio to grpcio"]) >= LIMIT for rates in results.values())
    return 0 if all(good) else 1


def message(model: str, arrays: dict[str, np.ndarray]) -> bytes:
    inputs = [
        pb.ModelInferRequest.InferInputTensor(name=name, datatype="FP32", shape=array.shape)
        for name, array in arrays.items()
    ]
    raw = [array.tobytes() for array in arrays.values()]
    return pb.ModelInferRequest(model_name=model, inputs=inputs, raw_input_contents=raw).SerializeToString()


@contextmanager
def echo(folder: Path) -> Iterator[int]:
    ready = folder / "echo.json"
    with child([sys.executable, str(HERE / "echo_grpc.py"), str(ready)], folder / "echo.log", ready) as document:
        yield int(document["port"])


def load(
    port: int,
    body: bytes,
    connections: int,
    seconds: int,
    host: str = "127.0.0.1",
    metadata: Sequence[str] = (),
) -> float:
    """Calls per second. ``metadata``: NAME=VALUE of each call."""
    command = [sys.executable, str(HERE / "load_grpc.py"), host, str(port), str(connections), str(seconds), *metadata]
    output = subprocess.run(command, input=body, capture_output=True)
    if output.returncode:
        raise SystemExit(output.stderr.decode())
    return float(output.stdout)


def show(results: dict[tuple[str, int], dict[str, float]]) -> None:
    print(f"gRPC calls per second, generator load_grpc.py, {os.cpu_count()} cores shared with it")
    columns = ("connections", "builtin", "grpcio", "echo", "to grpcio", "to echo")
    print(f"{'model':<14}" + "".join(f"{column:>12}" for column in columns))
    for (model, connections), rates in results.items():
        cells = (
            f"{connections}",
            *(f"{rates[name]:,.0f}" for name in ("ours", "grpcio", "echo")),
            *(f"{rates[name]:.2f}" for name in ("ratio to grpcio", "ratio")),
        )
        print(f"{model:<14}" + "".join(f"{cell:>12}" for cell in cells))
    for name, against in (("ratio to grpcio", "grpcio"), ("ratio", "the echo")):
        print(f"worst ratio to {against}: {min(rates[name] for rates in results.values()):.2f} (limit: {LIMIT})")


def write(options: argparse.Namespace, results: dict[tuple[str, int], dict[str, float]]) -> None:
    rows = [{"model": model, "connections": count, **rates} for (model, count), rates in results.items()]
    options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    sys.exit(main())
