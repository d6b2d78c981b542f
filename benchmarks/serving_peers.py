"""Inference requests per second of repoagent beside MLServer, and beside a Triton if there is one, in the same run.

    python benchmarks/serving_peers.py --mlserver .venvs/mlserver
    python benchmarks/serving_peers.py --write-models DIR       # what a Triton is to serve (backend onnxruntime)
    python benchmarks/serving_peers.py --triton-http HOST:8000 --triton-grpc HOST:8001

The models, inputs and generators are those of http_infer.py and grpc_infer.py. MLServer runs the same ONNX files on
ONNX Runtime, in one process (``parallel_workers`` 0). The addresses of a Triton can also be given by the environment:
REPOAGENT_TRITON_HTTP and REPOAGENT_TRITON_GRPC. A peer that is not there prints MISSING, one that does not answer a
form of request prints "refused"; the exit status is 1 if one is missing. Beside them are printed figures of a stock
Triton 2.51 taken on another idle machine with two cores (a Python identity model of 16 values; HTTP with wrk, gRPC with
perf_analyzer).
"""

import os
import statistics
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path

import http_infer
from loads import rate
from measures import in_turns, options_of, table
from onnx_models import write_models
from servers import Missing, Server, mlserver, repoagent, report_missing

TRITON = {**http_infer.TRITON, "grpc": {1: 4100, 8: 8600, 32: 8000}}
PEERS = ("repoagent", "MLServer", "Triton")
Address = tuple[str, int]


def main() -> int:
    options = options_of(
        __doc__,
        seconds=(2, "of one measurement"),
        rounds=3,
        connections=[1, 8, 32],
        mlserver=(".venvs/mlserver", "where MLServer is installed"),
        triton_http=os.environ.get("REPOAGENT_TRITON_HTTP", ""),
        triton_grpc=os.environ.get("REPOAGENT_TRITON_GRPC", ""),
        write_models=(Path, "write the model repository there, and end"),
    )
    if options.write_models:
        write_models(options.write_models)
        return 0
    missing, rows = {}, []
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)
        inputs = write_models(folder / "models")
        peers = {"repoagent": ports(stack.enter_context(repoagent("repoagent", folder)))}
        try:
            server = mlserver("MLServer", folder, Path(options.mlserver).absolute(), onnx=True)
            peers["MLServer"] = ports(stack.enter_context(server))
        except Missing as error:
            missing["MLServer"] = str(error)
        if options.triton_http and options.triton_grpc:
            peers["Triton"] = address(options.triton_http), address(options.triton_grpc)
        else:
            missing["Triton"] = "give --triton-http and --triton-grpc; --write-models writes what it is to serve"
        for name, form, count in product(inputs, TRITON, options.connections):
            takes = {
                peer: partial(answered, form, name, inputs[name], found[form == "grpc"], count, options.seconds)
                for peer, found in peers.items()
            }
            rates = in_turns(takes, options.rounds)
            cells = [f"{statistics.median(rates[peer]):,.0f}" if peer in rates else "MISSING" for peer in PEERS]
            rows.append([name, form, count, *("refused" if c == "nan" else c for c in cells), TRITON[form].get(count)])
    print(f"requests per second, {os.cpu_count()} cores shared with the generator")
    print(table(("model", "form", "connections", *PEERS, "Triton ref."), rows))
    return report_missing(missing)


def answered(form: str, *asked: object) -> float:
    """The rate; nan if the generator got something else than answers."""
    try:
        return rate(form, *asked)  # type: ignore[arg-type]
    except SystemExit:
        return float("nan")


def ports(server: Server) -> tuple[Address, Address]:
    return ("127.0.0.1", server.http), ("127.0.0.1", server.grpc)


def address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    sys.exit(main())
