"""Inference requests per second over gRPC, against a bare echo on grpcio in the same run.

    python benchmarks/grpc_infer.py                       # exit status 1 if one is under 0.6 of the echo
    python benchmarks/grpc_infer.py --seconds 10 --rounds 5 --connections 8

The models, their inputs and the `repoagent serve` are those of http_infer.py; tensors travel raw, as stock clients send
them. Beside it runs a grpc.aio server that answers each call with the bytes of its message, which it does not parse.
The same generator loads both in turns; the medians of the rates and of the rounds' ratios count. The generator runs on
the same cores as the servers, so its cost, which is about that of the echo, is in every figure.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from http_infer import HERE, alternating, arguments, child, serve_ports, write_models
from repoagent_server.grpc import messages_pb2 as pb

LIMIT = 0.6


def main() -> int:
    options = arguments(str(__doc__))
    results: dict[tuple[str, int], dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        messages = {name: message(name, arrays) for name, arrays in write_models(folder / "models").items()}
        with serve_ports(folder) as ports, echo(folder) as echo_port:
            for name, body in messages.items():
                for connections in options.connections:
                    once = partial(load, body=body, connections=connections, seconds=options.seconds)
                    results[name, connections] = alternating(
                        once, {"ours": ports["grpc"], "echo": echo_port}, options.rounds
                    )
    show(results)
    if options.json:
        write(options, results)
    return 0 if all(rates["ratio"] >= LIMIT for rates in results.values()) else 1


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


def load(port: int, body: bytes, connections: int, seconds: int, host: str = "127.0.0.1") -> float:
    command = [sys.executable, str(HERE / "load_grpc.py"), host, str(port), str(connections), str(seconds)]
    output = subprocess.run(command, input=body, capture_output=True)
    if output.returncode:
        raise SystemExit(output.stderr.decode())
    return float(output.stdout)


def show(results: dict[tuple[str, int], dict[str, float]]) -> None:
    print(f"gRPC calls per second, generator load_grpc.py, {os.cpu_count()} cores shared with it")
    print(f"{'model':<14}" + "".join(f"{column:>12}" for column in ("connections", "repoagent", "echo", "ratio")))
    for (model, connections), rates in results.items():
        cells = (f"{connections}", f"{rates['ours']:,.0f}", f"{rates['echo']:,.0f}", f"{rates['ratio']:.2f}")
        print(f"{model:<14}" + "".join(f"{cell:>12}" for cell in cells))
    worst = min(rates["ratio"] for rates in results.values())
    print(f"worst ratio to the echo: {worst:.2f} (limit: at least {LIMIT})")


def write(options: argparse.Namespace, results: dict[tuple[str, int], dict[str, float]]) -> None:
    rows = [{"model": model, "connections": count, **rates} for (model, count), rates in results.items()]
    options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    sys.exit(main())
