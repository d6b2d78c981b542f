"""Inference requests per second over HTTP, against a bare echo on the same HTTP server in the same run.

    python benchmarks/http_infer.py                       # exit status 1 if one is under half of the echo
    python benchmarks/http_infer.py --seconds 10 --rounds 5 --connections 8

Three ONNX models of different shapes are served by a `repoagent serve` of their own; beside it runs an ASGI application
that returns each body as it came, on uvicorn with the same event loop and parser. Both are loaded by the same generator
in turns; the medians of the rates and of the rounds' ratios count. The generator is `wrk` (Debian: apt install wrk) or,
where that is missing, load_http.py beside this file, which costs more of the machine; it runs on the same cores as the
servers, so its cost is in every figure. What a bare `session.run` of each model takes is printed beside, as no server
can do without it. Figures of a stock Triton 2.51 with a Python identity model of 16 values, taken with wrk on another
idle machine with two cores, are printed for orientation.
"""

import os
import sys
import tempfile
import time
from functools import partial
from itertools import product
from pathlib import Path

import onnxruntime
from loads import GENERATOR, Arrays, http_rate, payload
from measures import in_turns, medians, options_of, ratio, table
from onnx_models import write_models
from servers import echo, repoagent

LIMIT = 0.5
TRITON = {"json": {1: 8800, 8: 21000, 32: 20000}, "binary": {1: 8700, 8: 23000, 32: 29500}}


def main() -> int:
    options = options_of(__doc__, seconds=(2, "of one measurement"), rounds=3, connections=[1, 8, 32])
    rows, ratios, bare = [], [], []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        inputs = write_models(folder / "models")
        for name, arrays in inputs.items():
            bare.append(f"{name} {bare_seconds(folder / 'models' / name / '1/model.onnx', arrays) * 1e6:.1f} us")
        with repoagent("ours", folder) as ours, echo("http", folder) as other:
            for name, form, count in product(inputs, ("json", "binary"), options.connections):
                item = payload(name, form, inputs[name])
                takes = {
                    server.name: partial(http_rate, item, server.http, count, options.seconds)
                    for server in (ours, other)
                }
                rates = in_turns(takes, options.rounds)
                ratios.append(ratio(rates, "ours", "echo"))
                cells = [f"{value:,.0f}" for value in medians(rates).values()]
                rows.append([name, form, count, *cells, f"{ratios[-1]:.2f}", TRITON[form].get(count, "-")])
    print(f"requests per second, generator {GENERATOR}, {os.cpu_count()} cores shared with it")
    print(table(("model", "form", "connections", "repoagent", "echo", "ratio", "Triton"), rows))
    print(f"worst ratio to the echo: {min(ratios):.2f} (limit: at least {LIMIT})")
    print("a bare session.run: " + ", ".join(bare))
    return 0 if min(ratios) >= LIMIT else 1


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
