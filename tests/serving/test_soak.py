"""Soak test of the serving core: mixed models, cancellations, timeouts, faults, reloads under load, loads and unloads.

In full it is a million requests, then 200 models loaded and unloaded 20 times. Every request must get exactly one final
answer, and the right one; statistics must add up; threads, descriptors and directories must be given back, and memory
must not grow.
"""

import ctypes
import gc
import logging
import os
import queue
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from repoagent.errors import CancelledError, RepoAgentError, UnavailableError
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from repoagent.serving.requests.request import Asked, InferRequest, InferResponse
from repoagent.serving.requests.tensor import Tensor
from tests.extent import in_full
from tests.serving.mixed_models import double_onnx, python_model, write_model, write_repository

REQUESTS: Final = 1_000_000
CLIENTS: Final = 4
IN_FLIGHT: Final = 8
MODELS: Final = 200
ROUNDS: Final = 20
GROWTH_LIMIT: Final = 16 << 20
SERVED: Final = ("onnx", "moving", "python", "slow", "faulty", "stream", "ensemble")
WEIGHTS: Final = (30, 20, 20, 3, 7, 8, 12)


@dataclass(slots=True)
class Report:
    """What a run showed. ``faults`` is empty after a good one."""

    requests: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    reloads: int = 0
    memory_growth: int = 0
    churn_growth: int = 0
    faults: list[str] = field(default_factory=list)

    def require(self, condition: bool, fault: str) -> None:
        """Note ``fault`` unless ``condition``; the first dozens are enough."""
        if not condition and len(self.faults) < 50:
            self.faults.append(fault)


# -- clients -----------------------------------------------------------------------------------------------------------


class Sender:
    """Gets the answers to one request and puts the request back into its client's line at the end."""

    def __init__(self, done: "queue.SimpleQueue[Sender]", request: InferRequest) -> None:
        self.request = request
        self.responses: list[InferResponse] = []
        self.finals = 0
        self._done = done

    def send(self, response: InferResponse | None, final: bool) -> None:
        if response is not None:
            self.responses.append(response)
        if final:
            self.finals += 1
            self._done.put(self)


class Client:
    """Sends ``count`` requests of all kinds and judges what comes back."""

    def __init__(self, core: ServingCore, count: int, seed: int) -> None:
        self._core = core
        self._count = count
        self._chance = random.Random(seed)
        self._done: queue.SimpleQueue[Sender] = queue.SimpleQueue()
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.faults: list[str] = []

    def run(self) -> None:
        """Send everything, with up to IN_FLIGHT requests at once, and wait for all answers."""
        in_flight = 0
        for number in range(self._count):
            if self._chance.random() < 0.3:
                self._infer(self._request(number))
                continue
            if in_flight == IN_FLIGHT:
                self._judge(self._done.get(timeout=60))
                in_flight -= 1
            self._submit(self._request(number))
            in_flight += 1
        for _ in range(in_flight):
            self._judge(self._done.get(timeout=60))
        if not self._done.empty():
            self.faults.append("a request was answered twice")

    def _request(self, number: int) -> InferRequest:
        (model,) = self._chance.choices(SERVED, WEIGHTS)
        array = np.full((self._chance.randint(1, 3), 4), number % 1000, np.float32)
        timeout = self._chance.choice([0, 0, 0, 0, 0, 0, 0, 1, 300, 5_000_000])
        return InferRequest(Asked(model, {"x": Tensor.of(array)}, id=str(number), timeout_us=timeout))

    def _infer(self, request: InferRequest) -> None:
        if request.model_name == "stream":
            request.model_name = "python"
        try:
            responses = [self._core.infer(request)]
        except RepoAgentError as error:
            responses = [InferResponse(request.model_name, "", error=error)]
        self._check(request, responses)

    def _submit(self, request: InferRequest) -> None:
        request.redirect(Sender(self._done, request))
        self._core.submit(request)
        if self._chance.random() < 0.05:
            request.cancel()

    def _judge(self, sender: Sender) -> None:
        if sender.finals != 1:
            self.faults.append(f"request {sender.request.asked.id} had {sender.finals} final answers")
        self._check(sender.request, sender.responses)

    def _check(self, request: InferRequest, responses: list[InferResponse]) -> None:
        x = request.inputs["x"].array
        errors = [response.error for response in responses if response.error is not None]
        self.outcomes[request.model_name, self._kind(request, errors[0] if errors else None)] += 1
        expected = int(x[0, 0]) % 4 if request.model_name == "stream" else 1
        if not errors and len(responses) != expected:
            self.faults.append(f"{request.model_name}: {len(responses)} answers, expected {expected}")
        for response in responses:
            if response.error is None and not np.array_equal(response.outputs["y"].array, x * 2):
                self.faults.append(f"{request.model_name}: a wrong answer to {x[0, 0]}")

    def _kind(self, request: InferRequest, error: RepoAgentError | None) -> str:
        if error is None:
            return "ok"
        if isinstance(error, CancelledError) and request.cancelled:
            return "cancelled"
        if isinstance(error, UnavailableError) and "timeout" in str(error) and request.asked.timeout_us:
            return "timed out"
        if request.model_name == "faulty" and "made on purpose" in str(error):
            return "failed"
        self.faults.append(f"{request.model_name}: unexpected {error!r}")
        return "unexpected"


# -- the phases --------------------------------------------------------------------------------------------------------


@contextmanager
def reloading(core: ServingCore, model: Path, report: Report) -> Iterator[None]:
    """Reload ``model`` over and over, as its file is written anew each time."""
    stop = threading.Event()

    def reload() -> None:
        while not stop.wait(0.05):
            os.utime(model / "1" / "model.onnx")
            core.load(model.name)
            report.reloads += 1

    thread = threading.Thread(target=reload)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def send_requests(core: ServingCore, count: int, seed: int, report: Report) -> Counter[tuple[str, str]]:
    """Let all clients send ``count`` requests together."""
    clients = [Client(core, count // CLIENTS, seed * CLIENTS + index) for index in range(CLIENTS)]
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcomes: Counter[tuple[str, str]] = Counter()
    for client in clients:
        outcomes += client.outcomes
        report.faults += client.faults[:10]
    report.requests += count // CLIENTS * CLIENTS
    report.require(sum(outcomes.values()) == count // CLIENTS * CLIENTS, f"answers are missing: {outcomes}")
    return outcomes


def check_statistics(core: ServingCore, outcomes: Counter[tuple[str, str]], report: Report) -> None:
    """What the core counted against what the clients saw. ``moving`` starts anew with each reload."""
    counted = {entry["name"]: entry["inference_stats"] for entry in core.statistics()["model_stats"]}
    for model in set(SERVED) - {"moving"}:
        seen = {kind: count for (name, kind), count in outcomes.items() if name == model}
        good, bad = seen.get("ok", 0), sum(seen.values()) - seen.get("ok", 0)
        got = counted[model]["success"]["count"], counted[model]["fail"]["count"]
        report.require(got == (good, bad), f"statistics of {model}: {got}, the clients saw {(good, bad)}")
    steps = [counted[member]["success"]["count"] for member in ("left", "half", "right")]
    report.require(steps == sorted(steps, reverse=True), f"a later step ran more often than an earlier one: {steps}")
    report.require(steps[-1] >= counted["ensemble"]["success"]["count"], f"an ensemble without its last step: {steps}")


def churn(core: ServingCore, names: list[str], rounds: int, report: Report) -> None:
    """Load and unload all of ``names``; after the first quarter memory must stay as it is."""
    settled = 0
    for number in range(rounds):
        for name in names:
            core.load(name)
        for name in names:
            core.unload(name)
        if number == rounds // 4:
            settled = resident()
    report.churn_growth = resident() - settled
    report.require(report.churn_growth < GROWTH_LIMIT, f"loads and unloads: memory grew by {report.churn_growth}")


def resident() -> int:
    """Bytes of memory that this process holds, after what is garbage has gone and free pages have been given back.

    The C library keeps pages that it may need again: up to 35 MiB of 200 sessions, more after one round, less after
    the next. That is no growth.
    """
    gc.collect()
    with suppress(OSError, AttributeError):  # Another C library has no such function.
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def nothing_left_behind(workspace: Path, report: Report) -> Iterator[None]:
    """Compare threads, descriptors and directories before and after."""

    def held() -> dict[str, int]:
        gc.collect()
        return {
            "threads": threading.active_count(),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "directories": sum(path.is_dir() for path in workspace.rglob("*")) if workspace.exists() else 0,
        }

    before = held()
    yield
    deadline = time.monotonic() + 60
    while (after := held()) != before and time.monotonic() < deadline:
        time.sleep(0.05)  # A thread that has just ended may still be listed.
    for kind, count in after.items():
        report.require(count <= before[kind], f"{kind}: {before[kind]} before, {count} after")


def soak(share: float, seed: int) -> Report:
    """Run everything at ``share`` of its full length."""
    report = Report()
    requests = int(REQUESTS * share)
    with tempfile.TemporaryDirectory() as scratch:
        repository, workspace = Path(scratch, "models"), Path(scratch, "workspace")
        write_repository(repository)
        small = [f"small{number}" for number in range(max(10, int(MODELS * min(1, share * 10))))]
        for index, name in enumerate(small):
            write_model(repository, name, double_onnx() if index % 2 else python_model())
        options: dict[str, Any] = {"workspace_directory": workspace, "cache_directory": Path(scratch, "cache")}
        with ServingCore(options_of(repository, {})) as core:  # What is imported once is not a leak.
            core.load("python")
            core.load("onnx")
        with nothing_left_behind(workspace, report), ServingCore(options_of(repository, options)) as core:
            for name in SERVED:
                core.load(name)
            with reloading(core, repository / "moving", report):
                outcomes = send_requests(core, requests // 4, seed, report)
                settled = resident()
                outcomes += send_requests(core, requests - requests // 4, seed + 1, report)
            report.memory_growth = resident() - settled
            report.require(report.memory_growth < GROWTH_LIMIT, f"requests: memory grew by {report.memory_growth}")
            check_statistics(core, outcomes, report)
            churn(core, small, max(2, int(ROUNDS * min(1, share * 10))), report)
    for (_, kind), count in outcomes.items():
        report.outcomes[kind] += count
    return report


def options_of(repository: Path, more: dict[str, Any]) -> CoreOptions:
    """EXPLICIT, without agents from directories."""
    return CoreOptions(
        repositories=(str(repository),), control_mode=ControlMode.EXPLICIT, repoagent_directory=None, **more
    )


@pytest.mark.slow
def test_mixed_requests_under_reloads_are_answered_once_and_rightly_and_nothing_is_left_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "repoagent")  # The faults are made on purpose.
    share = in_full(1.0, otherwise=0.01)
    report = soak(share, seed=0)
    print(report)
    assert report.faults == []
    assert report.requests == int(REQUESTS * share)
    assert {"ok", "cancelled", "timed out", "failed"} <= set(report.outcomes)
    assert report.reloads > 0
