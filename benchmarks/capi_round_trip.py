"""A request from C beside the same from Python, in one run; the cost of a C function without Python; a program's start.

Prints medians. Needs repoagent-capi (from a checkout: pip install ./capi) and a C compiler.
"""

import statistics
import subprocess
import tempfile
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import repoagent_capi
from repoagent_capi import triton_bindings as tb

ROUNDS = 5000
CONFIG = """backend: "identity"
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
"""


def python_round_trip(repository: Path) -> float:
    """Microseconds of one request through the binding layer, made, submitted and answered."""
    options = tb.TRITONSERVER_ServerOptions()
    options.set_model_repository_path(str(repository))
    server = tb.TRITONSERVER_Server(options)
    values = np.zeros(16, np.float32)

    def once() -> None:
        request = tb.TRITONSERVER_InferenceRequest(server, "identity", -1)
        request.add_input("INPUT0", tb.TRITONSERVER_DataType.FP32, [16])
        request.append_input_data("INPUT0", values.ctypes.data, values.nbytes, tb.TRITONSERVER_MemoryType.CPU, 0)
        answer: Future[Any] = Future()
        request.get_next_response(answer)
        server.infer_async(request)
        answer.result()[0].output(0)

    for _ in range(500):
        once()
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter_ns()
        once()
        times.append(time.perf_counter_ns() - started)
    server.stop()
    return statistics.median(times) / 1000


def c_figures(directory: Path, repository: Path) -> dict[str, float]:
    """What the C program prints."""
    program, library = directory / "round_trip", repoagent_capi.LIBRARY.parent
    source = Path(__file__).parent / "capi" / "round_trip.c"
    flags = [f"-I{repoagent_capi.INCLUDE}", f"-L{library}", "-ltritonserver", f"-Wl,-rpath,{library}", "-lpthread"]
    subprocess.run(["cc", "-O2", "-std=c99", str(source), "-o", str(program), *flags], check=True)
    done = subprocess.run([program, repository, str(ROUNDS)], capture_output=True, text=True, env={}, check=True)
    return {name: float(figure) for name, figure in (line.split() for line in done.stdout.splitlines())}


def main() -> None:
    """Measure, and print one line each."""
    with tempfile.TemporaryDirectory() as made:
        repository = Path(made) / "repository"
        (repository / "identity" / "1").mkdir(parents=True)
        (repository / "identity" / "config.pbtxt").write_text(CONFIG)
        in_python = python_round_trip(repository)
        in_c = c_figures(Path(made), repository)
    more = in_c["infer"] - in_python
    print(f"round trip from Python {in_python:.1f} us, from C {in_c['infer']:.1f} us: {more:+.1f} us (at most +15)")
    print(f"a C function without Python {in_c['getter'] * 1000:.0f} ns (under 100)")
    print(f"start of a C program with a server and one model {in_c['start'] / 1e6:.2f} s")


if __name__ == "__main__":
    main()
