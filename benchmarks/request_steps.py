"""The steps of one inference request, and what each costs: HTTP with JSON, with binary tensors, gRPC, in process.

    python benchmarks/request_steps.py                              # microseconds of the processor per request and step
    python benchmarks/request_steps.py --write docs/measurements    # also writes request.md

The model is an ONNX Relu of 16 values, asked over one connection; a `repoagent serve` of its own executes it on the
thread of the front end. Each way is measured twice: plainly, for the time of the processor that the server takes per
request, and under a profiler that reads the clock of the thread. The profiler slows everything down, so only each
step's share is taken from it. A step is a folder or file of the code, as docs/internals.md describes them; what the C
code of a library takes counts for the step that calls it.
"""

import argparse
import cProfile
import os
import pstats
import runpy
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from loads import rate
from measures import markdown, options_of, session_seconds, table
from onnx_models import write_models
from servers import MAIN, Server, repoagent

from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor

MODEL: Final = "relu_16"
STATS: Final = "REQUEST_STEPS_STATS"
STEPS: Final = (
    ("bytes: sockets, HTTP, HTTP/2", ("repoagent_server/http/", "repoagent_server/grpc/http2/", "hpack/")),
    ("decode and encode", ("repoagent_server/codec/", "repoagent_server/grpc/")),
    ("prepare, and the way back", ("repoagent_server/handlers/", "repoagent_server/shared/")),
    ("look up and check", ("serving/core", "serving/reception", "serving/versions/", "serving/lifecycle/")),
    ("schedule", ("serving/scheduling/", "serving/instances/instance_pool")),
    ("count", ("serving/measuring/", "serving/tracing/")),
    ("execute", ("serving/instances/", "serving/backends/", "onnxruntime", "serving/requests/")),
)
OTHER: Final = "event loop and everything else"
WAYS: Final = {"json": "HTTP, JSON", "binary": "HTTP, binary", "grpc": "gRPC", "process": "in process"}


def main() -> int:
    options = options_of(
        __doc__,
        seconds=(3, "length of one measurement"),
        write=(Path, "write the page into this directory"),
    )
    steps: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        arrays = write_models(folder / "models")[MODEL]
        for way in WAYS:
            ask = in_process if way == "process" else served
            total, shares = ask(folder, way, arrays, options)
            steps[way] = {name: share * total for name, share in shares.items()}
    show(steps)
    if options.write:
        (options.write / "request.md").write_text(page(steps))
    return 0


Found = tuple[float, Mapping[str, float]]
"""Microseconds of the processor per request, and the share of each step."""


def served(folder: Path, way: str, arrays: Mapping[str, np.ndarray], options: argparse.Namespace) -> Found:
    """Over a connection, to a server of its own."""
    seconds = options.seconds

    def load(server: Server) -> float:
        return rate(way, MODEL, arrays, ("127.0.0.1", server.grpc if way == "grpc" else server.http), 1, seconds)

    with repoagent(f"{way}-plain", folder, program=("-c", MAIN)) as server:
        load(server)
        begun = session_seconds(server)
        count = load(server) * seconds
        total = (session_seconds(server) - begun) / count * 1e6
    stats = folder / f"{way}.stats"
    os.environ[STATS] = f"{'grpc' if way == 'grpc' else 'http'}:{stats}"
    try:
        with repoagent(f"{way}-profiled", folder, program=(__file__,)) as server:
            load(server)
    finally:
        del os.environ[STATS]
    return total, shares_of(pstats.Stats(str(stats)))


def in_process(folder: Path, _way: str, arrays: Mapping[str, np.ndarray], options: argparse.Namespace) -> Found:
    """By a caller that waits, on its own thread."""
    core_options = CoreOptions(
        repositories=(str(folder / "models"),), control_mode=ControlMode.NONE, repoagent_directory=None
    )
    with ServingCore(core_options) as core:

        def ask(count: int) -> None:
            for _ in range(count):
                core.infer(InferRequest(Asked(MODEL, {name: Tensor.of(array) for name, array in arrays.items()})))

        count = 5000 * options.seconds
        ask(1000)
        begun = time.thread_time()
        ask(count)
        total = (time.thread_time() - begun) / count * 1e6
        profile = cProfile.Profile(time.thread_time)
        profile.runcall(ask, count)
    return total, shares_of(pstats.Stats(profile))


# Steps.


def shares_of(stats: Any) -> dict[str, float]:
    """The share of each step; what is not Python counts for its callers."""
    times: dict[str, float] = defaultdict(float)
    for (file, _, _), (_, _, own, _, callers) in stats.stats.items():
        if file == "~" and callers:
            for (caller, _, _), (_, _, part, _) in callers.items():
                times[step_of(caller)] += part
        else:
            times[step_of(file)] += own
    whole = sum(times.values())
    return {name: times[name] / whole for name in (*(name for name, _ in STEPS), OTHER)}


def step_of(file: str) -> str:
    path = file.replace(os.sep, "/")
    return next((name for name, parts in STEPS if any(part in path for part in parts)), OTHER)


def profile_front_end() -> None:
    """Have the thread of a front end profiled from its start to its end; for the server under :data:`STATS`."""
    name, _, target = os.environ[STATS].partition(":")
    run: Callable[[threading.Thread], None] = threading.Thread.run

    def profiled(self: threading.Thread) -> None:
        if self.name != name:
            run(self)
            return
        profile = cProfile.Profile(time.thread_time)
        try:
            profile.runcall(run, self)
        finally:
            profile.dump_stats(target)

    threading.Thread.run = profiled  # type: ignore[method-assign]


# The page.


def show(steps: Mapping[str, Mapping[str, float]]) -> None:
    names = (*(name for name, _ in STEPS), OTHER)
    rows = [[name, *(f"{found[name]:.1f}" for found in steps.values())] for name in names]
    rows.append(["in all", *(f"{sum(found.values()):.1f}" for found in steps.values())])
    print(table(("microseconds of the processor", *WAYS.values()), rows))


PAGE = """# What a request costs

`benchmarks/request_steps.py` asks an ONNX model of 16 values in four ways and adds up what the
server's processor does for one request. The steps are those of
[the life of a request](../internals.md#the-life-of-a-request).

    python benchmarks/request_steps.py --write docs/measurements

Microseconds of the processor per request:

{table}

- **Machine**: {machine}, {date}.
- **Totals** are measured without a profiler. A profiler gives each step's share, so figures below a
  microsecond are rough.
- **Sockets**: writing counts for the first step. Waking up and reading, which the event loop does,
  count for the last one.

## The budget

`server_stub/tests/test_request_budget.py` counts what a request may cost, and fails when it costs
more. It measures no time.

| | reads | writes | hops between threads | copies of a tensor |
| --- | --- | --- | --- | --- |
| HTTP and gRPC, model on the front end's thread | 1 | 1 | 0 | 1 at most |
| HTTP and gRPC, model on its own thread | 2 | 2 | 2 | 1 at most |
| in process, a caller that waits | 0 | 0 | 0 | 0 |

A read or write more than one is the wake-up of the event loop by the model's thread.

A request to a Python model also has a budget of calls: of functions of this project, in the server.

| HTTP, JSON | HTTP, binary | gRPC | HTTP, model in its own process |
| --- | --- | --- | --- |
| 138 | 139 | 136 | 182 |
"""


def page(steps: Mapping[str, Mapping[str, float]]) -> str:
    rows = [
        [name, *(f"{found[name]:.1f}" for found in steps.values())] for name in (*(name for name, _ in STEPS), OTHER)
    ]
    rows.append(["**in all**", *(f"**{sum(found.values()):.1f}**" for found in steps.values())])
    head = ["", *WAYS.values()]
    machine = f"{os.cpu_count()} cores with a load of {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}"
    return PAGE.format(
        table=markdown(head, rows),
        machine=machine,
        date=datetime.now(UTC).strftime("%B %Y"),
    )


if __name__ == "__main__":
    if STATS in os.environ:
        profile_front_end()
        sys.argv[0] = "repoagent"
        sys.path.pop(0)
        runpy.run_module("repoagent", run_name="__main__", alter_sys=True)
    else:
        sys.exit(main())
