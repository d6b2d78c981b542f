"""Inference requests per second over HTTP and gRPC, against bare echoes in the same run.

    python benchmarks/infer_rates.py                      # exit status 1 if a ratio to the echo is under its limit
    python benchmarks/infer_rates.py --seconds 10 --rounds 5 --connections 8 --forms json grpc

Three ONNX models of different shapes are served by a `repoagent serve` of their own. Beside it run an ASGI application
on uvicorn and a server of grpc.aio, on the same kind of event loop, that return each body as it came. All are loaded by
the same generators in turns; the medians of the rates and of the rounds' ratios count. The generators are `wrk` and
load_grpc.py; they run on the same cores as the servers, so their cost is in every figure. What a bare `session.run` of
each model takes is printed beside, as no server can do without it. Figures of a stock Triton 2.51 with a Python
identity model of 16 values, taken with wrk on another idle machine with two cores, are printed for orientation.
"""

import os
import sys
import tempfile
import time
from functools import partial
from itertools import product
from pathlib import Path

import onnxruntime
from loads import Arrays, rate
from measures import in_turns, medians, options_of, ratio, table
from onnx_models import write_models
from servers import echo, repoagent

LIMITS = {"json": 0.5, "binary": 0.5, "grpc": 1.0}
"""Of the ratio to the echo, by the form of requests."""
TRITON = {"json": {1: 8800, 8: 21000, 32: 20000}, "binary": {1: 8700, 8: 23000, 32: 29500}, "grpc": {}}


def main() -> int:
    options = options_of(
        __doc__, seconds=(2, "of one measurement"), rounds=3, connections=[1, 8, 32], forms=list(LIMITS)
    )
    rows, bare, worst = [], [], dict.fromkeys(options.forms, float("inf"))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        inputs = write_models(folder / "models")
        for name, arrays in inputs.items():
            bare.append(f"{name} {bare_seconds(folder / 'models' / name / '1/model.onnx', arrays) * 1e6:.1f} us")
        with repoagent("ours", folder) as ours, echo("http", folder) as http, echo("grpc", folder) as grpc:
            for name, form, count in product(inputs, options.forms, options.connections):
                ports = (
                    {"ours": ours.grpc, "echo": grpc.grpc} if form == "grpc" else {"ours": ours.http, "echo": http.http}
                )
                takes = {
                    server: partial(rate, form, name, inputs[name], ("127.0.0.1", port), count, options.seconds)
                    for server, port in ports.items()
                }
                rates = in_turns(takes, options.rounds)
                share = ratio(rates, "ours", "echo")
                worst[form] = min(worst[form], share)
                cells = [f"{value:,.0f}" for value in medians(rates).values()]
                rows.append([name, form, count, *cells, f"{share:.2f}", TRITON[form].get(count, "-")])
    print(f"requests per second, generators wrk and load_grpc.py, {os.cpu_count()} cores shared with them")
    print(table(("model", "form", "connections", "repoagent", "echo", "ratio", "Triton"), rows))
    print(
        "worst ratios to the echo: " + ", ".join(f"{form} {worst[form]:.2f} (limit {LIMITS[form]})" for form in worst)
    )
    print("a bare session.run: " + ", ".join(bare))
    return 0 if all(worst[form] >= LIMITS[form] for form in worst) else 1


def bare_seconds(file: Path, inputs: Arrays) -> float:
    """Processor time of one run of a model, the least of many rounds."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    rounds = []
    for _ in range(20):
        started = time.thread_time()
        for _ in range(200):
            session.run(None, dict(inputs))
        rounds.append((time.thread_time() - started) / 200)
    return min(rounds)


if __name__ == "__main__":
    sys.exit(main())
