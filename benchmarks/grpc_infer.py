"""Inference requests per second over gRPC: the server, and a bare echo on grpcio, in turns in one run.

    python benchmarks/grpc_infer.py                       # exit status 1 if one is under its limit
    python benchmarks/grpc_infer.py --seconds 10 --rounds 5 --connections 8

The models and their inputs are those of http_infer.py. Beside the server runs a grpc.aio server, on the same kind of
event loop, that answers each call with the bytes of its message, which it does not parse. The same generator loads both
in turns; the medians of the rates and of the rounds' ratios count. The generator runs on the same cores as the servers,
so its cost is in every figure.
"""

import os
import sys
import tempfile
from functools import partial
from itertools import product
from pathlib import Path

from loads import grpc_rate, message
from measures import in_turns, medians, options_of, ratio, table
from onnx_models import write_models
from servers import echo, repoagent

LIMIT = 1.0
"""Of the ratio to the bare echo."""


def main() -> int:
    options = options_of(__doc__, seconds=(2, "of one measurement"), rounds=3, connections=[1, 8, 32])
    rows, worst = [], float("inf")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        inputs = write_models(folder / "models")
        with (
            repoagent("repoagent", folder) as own,
            echo("grpc", folder) as other,
        ):
            for name, count in product(inputs, options.connections):
                body = message(name, inputs[name])
                takes = {
                    server.name: partial(grpc_rate, body, server.grpc, count, options.seconds)
                    for server in (own, other)
                }
                rates = in_turns(takes, options.rounds)
                found = ratio(rates, own.name, other.name)
                worst = min(worst, found)
                rows.append([name, count, *(f"{value:,.0f}" for value in medians(rates).values()), f"{found:.2f}"])
    print(f"gRPC calls per second, generator load_grpc.py, {os.cpu_count()} cores shared with it")
    print(table(("model", "connections", "repoagent", "echo", "to echo"), rows))
    print(f"worst ratio to the echo: {worst:.2f} (limit: {LIMIT})")
    return 0 if worst >= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
