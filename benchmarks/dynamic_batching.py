"""What dynamic batching reaches: requests of one inference each, against fixed batches in a bare ONNX Runtime loop.

    python benchmarks/dynamic_batching.py               # exit status 1 if less than the limit is reached
    python benchmarks/dynamic_batching.py --seconds 5

The model is a perceptron of four layers, FP32[N,512] to FP32[N,16]: the weights are read once per execution, so larger
batches are cheaper per inference. The bare loop runs the same session options with batches of every size that is a
power of two; the best one counts. The core gets single requests, ``IN_FLIGHT`` of them at a time, by ``submit`` from
one thread; ``CALLERS`` threads that wait for each answer are measured too. They take turns, and the medians count.

That is for one instance, whose executions use all cores, against one loop; it has the limit. The other way to use all
cores, an instance (a loop) for each, is measured as well.
"""

import itertools
import os
import queue
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
from measures import call_rate, options_of, together
from onnx import helper, numpy_helper
from onnx_models import onnx_model, write_onnx

from repoagent.config import ModelConfig
from repoagent.serving.backends.onnxruntime.backend import session_options
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from repoagent.serving.requests.request import Asked, InferRequest, InferResponse
from repoagent.serving.requests.tensor import Array, Tensor

LIMIT = 0.90
MAX_BATCH = 64
IN_FLIGHT = 4 * MAX_BATCH
CALLERS = 32
WIDTHS = (512, 2048, 2048, 2048, 16)
ROUNDS = 10
BARE, CORE = "bare, {}", "core, {}"
LAYOUTS = {"one instance": 1, "an instance per core": len(os.sched_getaffinity(0))}
CONFIG = f"max_batch_size: {MAX_BATCH}\ndynamic_batching {{ }}\n"


def perceptron() -> bytes:
    """The model's file."""
    random = np.random.default_rng(0)
    nodes, constants, last = [], [], "x"
    for index, (rows, columns) in enumerate(itertools.pairwise(WIDTHS)):
        weights = (random.standard_normal((rows, columns)) / rows**0.5).astype(np.float32)
        constants.append(numpy_helper.from_array(weights, f"w{index}"))
        final = index == len(WIDTHS) - 2
        nodes.append(helper.make_node("MatMul", [last, f"w{index}"], ["y" if final else f"h{index}"]))
        if not final:
            nodes.append(helper.make_node("Relu", [f"h{index}"], [f"r{index}"]))
        last = f"r{index}"
    return onnx_model(nodes, constants, WIDTHS[0], WIDTHS[-1])


class Window:
    """A sender that lets the next request go when an answer comes."""

    def __init__(self) -> None:
        self._free: queue.SimpleQueue[None] = (
            queue.SimpleQueue()
        )  # A semaphore of Python's costs several times as much.
        for _ in range(IN_FLIGHT):
            self._free.put(None)
        self.answered = 0

    def wait(self) -> None:
        self._free.get()

    def send(self, response: InferResponse | None, final: bool) -> None:
        if response is None or response.error is not None:
            raise AssertionError(response)
        self.answered += 1
        self._free.put(None)

    def wait_for_all(self) -> None:
        for _ in range(IN_FLIGHT):
            self.wait()


def main() -> int:
    seconds = options_of(__doc__, seconds=(1.0, "how long each measurement takes")).seconds
    content = perceptron()
    values = np.random.default_rng(1).standard_normal((MAX_BATCH, WIDTHS[0])).astype(np.float32)
    with tempfile.TemporaryDirectory() as scratch, served(Path(scratch), content) as core:
        sessions = {count: new_session(content, count) for count in LAYOUTS.values()}
        check(core, sessions[1], values)
        sizes = [2**power for power in range(MAX_BATCH.bit_length())]
        rates = {size: bare_rate(sessions[1], values[:size], seconds / 2) for size in sizes}
        print("bare loop, inferences/s by batch size: " + ", ".join(f"{s}: {rate:.0f}" for s, rate in rates.items()))
        best = max(rates, key=rates.__getitem__)
        rounds = [measure(core, sessions, values, best, seconds) for _ in range(ROUNDS)]
        executions = core.statistics("m1")["model_stats"][0]
    mean = executions["inference_count"] / executions["execution_count"]
    for name in rounds[0]:
        rate, part = statistics.median(found[name] for found in rounds), share(name, rounds)
        print(f"{name:32} {rate:8.0f} inferences/s ({part:.0%} of one loop)")
    reached = share(CORE.format("one instance"), rounds)
    print(f"dynamic batching: {reached:.0%} of the best fixed batch (limit: {LIMIT:.0%}); {mean:.1f} in a batch")
    return 0 if reached >= LIMIT else 1


def measure(
    core: ServingCore, sessions: dict[int, onnxruntime.InferenceSession], values: Array, best: int, seconds: float
) -> dict[str, float]:
    """Inferences per second of everything once, one after the other."""
    rates = {}
    for layout, count in LAYOUTS.items():
        rates[BARE.format(layout)] = bare_rate(sessions[count], values[:best], seconds, loops=count)
        rates[CORE.format(layout)] = submit_rate(core, f"m{count}", values, seconds)
    return rates | {f"core, {CALLERS} threads that wait": wait_rate(core, "m1", values, seconds)}


def share(name: str, rounds: list[dict[str, float]]) -> float:
    """The part of one bare loop that ``name`` reached in the same round, the median of all."""
    return statistics.median(found[name] / found[BARE.format("one instance")] for found in rounds)


def new_session(content: bytes, instances: int) -> onnxruntime.InferenceSession:
    """A bare session like that of a model with so many instances."""
    options = session_options(ModelConfig(), instances)
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


@contextmanager
def served(scratch: Path, content: bytes) -> Iterator[ServingCore]:
    """A core with the model loaded in every layout, as ``m`` and the number of its instances."""
    for count in set(LAYOUTS.values()):
        config = f"{CONFIG}instance_group {{ kind: KIND_CPU count: {count} }}\n"
        write_onnx(scratch / "models", f"m{count}", content, config)
    options = CoreOptions(
        repositories=(str(scratch / "models"),),
        control_mode=ControlMode.NONE,
        workspace_directory=scratch / "workspace",
        cache_directory=scratch / "cache",
    )
    with ServingCore(options) as core:
        yield core


def check(core: ServingCore, session: onnxruntime.InferenceSession, values: Array) -> None:
    """The same numbers from both."""
    ours = core.infer(InferRequest(Asked("m1", {"x": Tensor.of(values)}))).outputs["y"].array
    np.testing.assert_allclose(ours, session.run(["y"], {"x": values})[0], rtol=1e-4, atol=1e-5)


def bare_rate(session: onnxruntime.InferenceSession, values: Array, seconds: float, loops: int = 1) -> float:
    """Inferences per second of so many loops, each on a thread of its own."""
    counts = [0] * loops
    start = time.perf_counter()

    def work(index: int) -> None:
        while time.perf_counter() - start < seconds:
            session.run(["y"], {"x": values})
            counts[index] += len(values)

    session.run(["y"], {"x": values})
    start = time.perf_counter()
    together([partial(work, index) for index in range(loops)])
    return sum(counts) / (time.perf_counter() - start)


def submit_rate(core: ServingCore, model: str, values: Array, seconds: float) -> float:
    """Answers per second to single requests, ``IN_FLIGHT`` of them at a time, once that many are under way."""
    window = Window()
    rows = [values[index : index + 1] for index in range(MAX_BATCH)]
    start, before = time.perf_counter(), 0
    for index in itertools.count():
        window.wait()
        if index == 2 * IN_FLIGHT:
            start, before = time.perf_counter(), window.answered
        core.submit(InferRequest(Asked(model, {"x": Tensor.of(rows[index % MAX_BATCH])}), window))
        if time.perf_counter() - start > seconds:
            break
    elapsed, answered = time.perf_counter() - start, window.answered - before
    window.wait_for_all()
    return answered / elapsed


def wait_rate(core: ServingCore, model: str, values: Array, seconds: float) -> float:
    """Answers per second to ``CALLERS`` threads, each of which waits for its answer."""
    row = values[:1]
    return call_rate(lambda: core.infer(InferRequest(Asked(model, {"x": Tensor.of(row)}))), seconds, CALLERS)


if __name__ == "__main__":
    sys.exit(main())
