"""Soak test of Python models in processes of their own: requests of every kind while the processes are being killed.

In full it is 100,000 requests, several at a time from each client, and up to 1,000 kills: one of a process that is
there. Half of the clients submit on an event loop, as the front ends do. Every request must get exactly one final
answer: the right one, or that the process was not healthy; nobody else's. In the end descriptors and threads must be
given back, no process may be left, and memory must not have grown.
"""

import asyncio
import gc
import os
import random
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import uvloop

from repoagent.serving.backends.python.process.instance import ProcessInstance
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from repoagent.serving.instances.loop_reader import LoopReader
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor
from tests.extent import in_full
from tests.processes import memory_of
from tests.serving.core_kit import Answers

REQUESTS: Final = 100_000
KILLS: Final = 1000
CLIENTS: Final = 6
BURST: Final = 8
"""How many requests a client has on their way at once: so processes are given several."""
GROWTH_LIMIT: Final = 32 << 20
SIGNALS: Final = (6, 9, 9, 11)
UNHEALTHY: Final = "is not healthy"
LARGEST: Final = 50_000
EXPECTED: Final = {"plain": 1, "streaming": 3}

PLAIN: Final = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", r.inputs()[0].as_numpy() * 2)]) for r in requests]
"""
# Three answers from a thread of its own, made by another model.
DECOUPLED: Final = """
import threading
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request, request.get_response_sender())).start()

    def answer(self, request, sender):
        call = pb_utils.InferenceRequest(model_name="local", inputs=request.inputs(), requested_output_names=["y"])
        y = pb_utils.get_output_tensor_by_name(call.exec(), "y")
        for _ in range(3):
            sender.send(pb_utils.InferenceResponse([y]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CONFIG: Final = """
backend: "python" instance_group {{ count: {count} }} model_transaction_policy {{ decoupled: {decoupled} }}
parameters {{ key: "EXECUTION" value {{ string_value: "{execution}" }} }}
input {{ name: "x" data_type: TYPE_FP32 dims: [-1] }} output {{ name: "y" data_type: TYPE_FP32 dims: [-1] }}
"""
MODELS: Final = {
    "local": (PLAIN, {"count": 1, "decoupled": "false", "execution": "in-process"}),
    "plain": (PLAIN, {"count": 2, "decoupled": "false", "execution": "process"}),
    "streaming": (DECOUPLED, {"count": 1, "decoupled": "true", "execution": "process"}),
}


@dataclass
class Report:
    """What happened. ``faults`` is empty if everything was as it must be."""

    requests: int = 0
    kills: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


class Soak:
    """Clients that share a number of requests; the one whose turn it is kills a process first."""

    def __init__(
        self, core: ServingCore, requests: int, kills: int, seed: int, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._core = core
        self._loop = loop
        self._turns = iter(range(requests))
        self._every = max(1, requests // kills)
        self._seed = seed
        self._lock = threading.Lock()
        instances = [entry for entry in gc.get_objects() if type(entry) is ProcessInstance]
        self._victims = [
            entry for entry in instances if entry.supervisor.child and not entry.supervisor.child.exited.is_set()
        ]
        self.report = Report()

    def run(self) -> None:
        clients = [threading.Thread(target=self._client, args=(number,)) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()

    def _turn(self) -> int | None:
        with self._lock:
            return next(self._turns, None)

    def _client(self, number: int) -> None:
        chance = random.Random(self._seed * CLIENTS + number)
        model = "streaming" if number % 3 == 0 else "plain"
        values = np.random.default_rng(number).random(LARGEST, np.float32)
        while turns := [turn for _ in range(BURST) if (turn := self._turn()) is not None]:
            if any(turn % self._every == self._every - 1 for turn in turns):
                self._kill(chance)
            burst = [(values[: chance.choice((1, 100, 5000, LARGEST))], Answers()) for _ in turns]
            for given, answers in burst:
                self._submit(InferRequest(Asked(model, {"x": Tensor.of(given)}), answers), on_loop=number % 2 == 1)
            for given, answers in burst:
                outcome = "no answer" if not answers.complete.wait(120) else judge(answers, given, EXPECTED[model])
                self._note(model, outcome)

    def _submit(self, request: InferRequest, *, on_loop: bool) -> None:
        if on_loop:
            self._loop.call_soon_threadsafe(self._core.submit, request)
        else:
            self._core.submit(request)

    def _note(self, model: str, outcome: str) -> None:
        with self._lock:
            self.report.requests += 1
            self.report.outcomes[outcome] += 1
            if outcome not in ("ok", "unhealthy"):
                self.report.faults.append(f"{model}: {outcome}")

    def _kill(self, chance: random.Random) -> None:
        child = chance.choice(self._victims).supervisor.child
        if child is None:
            return
        with child._reaping:  # Else it may end meanwhile, and its number be another process's.
            if child._reaped:
                return
            os.kill(child.pid, chance.choice(SIGNALS))
        with self._lock:
            self.report.kills += 1


def judge(answers: Answers, given: Any, expected: int) -> str:
    """What became of a request in a word or two."""
    errors = [str(response.error) for response in answers.responses if response.error is not None]
    good = [response.outputs["y"].array for response in answers.responses if response.error is None]
    if answers.finals != 1:
        return f"{answers.finals} final answers"
    if not all(np.array_equal(array, given * 2) for array in good):
        return "a wrong answer"
    if errors:
        return "unhealthy" if UNHEALTHY in errors[0] else errors[0]
    return "ok" if len(good) == expected else f"{len(good)} answers"


def soak(share: float, seed: int) -> Report:
    """Run ``share`` of the full length."""
    requests, kills = max(1, int(REQUESTS * share)), max(1, int(KILLS * share))
    with tempfile.TemporaryDirectory() as scratch:
        for name, (code, settings) in MODELS.items():
            write_model(Path(scratch, name), code, CONFIG.format(**settings))
        with event_loop():
            pass  # uvloop's first loop of a process opens two descriptors for good.
        before = resources()
        options = CoreOptions(repositories=(scratch,), control_mode=ControlMode.EXPLICIT, repoagent_directory=None)
        with ServingCore(options) as core, event_loop() as loop:
            for name in MODELS:
                core.load(name)
            soaking = Soak(core, requests, kills, seed, loop)
            memory = resident_bytes()
            soaking.run()
            report = soaking.report
            report.faults += list(grown(memory))
            children = [child for instance in soaking._victims if (child := instance.supervisor.child) is not None]
        del soaking
        report.faults += [f"process {child.pid} is left" for child in children if not child.exited.is_set()]
        children.clear()
        report.faults += left_over(before)
    return report


@contextmanager
def event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """One on a thread of its own, which takes the answers of processes."""
    loop, stop = uvloop.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        with LoopReader(loop):
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), name="repoagent-loop")
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def write_model(directory: Path, code: str, config: str) -> None:
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "model.py").write_text(code)
    (directory / "config.pbtxt").write_text(config)


@dataclass(frozen=True)
class Resources:
    """What this process holds. Others in it may have threads of their own, which stay."""

    descriptors: int
    threads: frozenset[threading.Thread]


def resources() -> Resources:
    gc.collect()
    named = (thread for thread in threading.enumerate() if thread.name.startswith("repoagent-"))
    return Resources(len(os.listdir("/proc/self/fd")), frozenset(named))


def left_over(before: Resources) -> list[str]:
    """What there is more than before, when the threads that are ending have ended."""
    for thread in resources().threads - before.threads:
        thread.join(10)
    after = resources()
    faults = [f"thread {thread.name} goes on" for thread in after.threads - before.threads]
    if after.descriptors > before.descriptors:
        faults.append(f"descriptors: {before.descriptors} before, {after.descriptors} after")
    return faults


def resident_bytes() -> int:
    """Memory of this process, without what it shares with its children."""
    gc.collect()
    return memory_of("RssAnon")


def grown(before: int) -> Iterator[str]:
    growth = resident_bytes() - before
    if growth > GROWTH_LIMIT:
        yield f"memory grew by {growth >> 20} MiB"


@pytest.mark.slow
def test_every_request_is_answered_once_and_rightly_while_processes_are_killed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("CRITICAL", "repoagent")  # The deaths are made on purpose.
    share = in_full(1.0, otherwise=0.01)
    report = soak(share, seed=0)
    print(report)
    assert report.faults == []
    assert report.requests == int(REQUESTS * share)
    assert report.kills > 0
    assert report.outcomes["ok"] > 0
