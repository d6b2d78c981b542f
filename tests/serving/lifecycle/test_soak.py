"""Soak test of the life cycle: six models, chains of up to four agents that raise anywhere, five threads.

Each thread loads, unloads, infers and rewrites models at random, and removes the workspace now and then. Every call
must return, with a right answer or an error that a client may get; every agent must live one of its legal lives, and
nothing may be left behind when the server has stopped, which it does again and again. In full it takes half an hour,
and another one in which half of the models lie on an S3 server that stands still for a minute. If a call does not
return, the stacks of all threads are printed.
"""

import faulthandler
import logging
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from repoagent.errors import InvalidTransitionError, RepoAgentError
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor
from tests.extent import IN_FULL, in_full
from tests.serving.lifecycle.raising_agents import Notes, write_agents
from tests.serving.lifecycle.soak_models import MODELS, Store, model_files, write_local

THREADS: Final = 5
ROUND_SECONDS: Final = 20.0
PATIENCE_SECONDS: Final = 120.0
RATE: Final = 0.05


@dataclass(slots=True)
class Report:
    """What a run showed. ``faults`` is empty after a good one."""

    outcomes: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    slowest: dict[str, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def fault(self, text: str) -> None:
        """Note it; the first dozens are enough."""
        if len(self.faults) < 50:
            self.faults.append(text)

    def count(self, operation: str, outcome: str, seconds: float) -> None:
        """One call that has returned."""
        self.outcomes[f"{operation}: {outcome}"] += 1
        self.slowest[operation] = max(seconds, self.slowest.get(operation, 0.0))


# -- the threads -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Call:
    """What a thread is in."""

    text: str = ""
    since: float = 0.0


class Worker:
    """One of the threads: calls at random until the time is over."""

    def __init__(
        self,
        core: ServingCore,
        workspace: Path,
        write: Callable[[str, dict[str, bytes]], None],
        seed: int,
        report: Report,
    ) -> None:
        self._core = core
        self._workspace = workspace
        self._write = write
        self._random = random.Random(seed)
        self._report = report
        self.call = Call()

    def run(self, deadline: float) -> None:
        """Call one thing after the other."""
        operations = (self._load, self._unload, self._infer, self._rewrite, self._look, self._clean)
        while time.monotonic() < deadline:
            (operation,) = self._random.choices(operations, (30, 20, 30, 15, 5, 0.05))
            name = self._random.choice(MODELS)
            self.call = Call(f"{operation.__name__}({name})", time.monotonic())
            outcome = self._outcome(operation, name)
            self._report.count(operation.__name__[1:], outcome, time.monotonic() - self.call.since)
            self.call = Call()

    def _outcome(self, operation: Callable[[str], None], name: str) -> str:
        try:
            operation(name)
        except InvalidTransitionError as error:
            self._report.fault(f"{operation.__name__}({name}): {error}")
            return "illegal life"
        except RepoAgentError as error:
            return type(error).__name__
        except BaseException as error:
            self._report.fault(f"{operation.__name__}({name}) raised {error!r}")
            return "unexpected"
        return "ok"

    def _load(self, name: str) -> None:
        self._core.load(name)

    def _unload(self, name: str) -> None:
        self._core.unload(name, wait=self._random.random() < 0.5, unload_dependents=self._random.random() < 0.2)

    def _infer(self, name: str) -> None:
        for number in range(self._random.randint(1, 20)):
            x = np.full((1, 4), number, np.float32)
            response = self._core.infer(InferRequest(Asked(name, {"x": Tensor.of(x)})))
            if not np.array_equal(response.outputs["y"].array, x * 2):
                self._report.fault(f"{name}: a wrong answer to {number}")

    def _rewrite(self, name: str) -> None:
        self._write(name, model_files(name, self._random))

    def _clean(self, _: str) -> None:
        """As a cleaner of temporary files that asks for no locks."""
        shutil.rmtree(self._workspace, ignore_errors=True)

    def _look(self, name: str) -> None:
        self._core.index()
        self._core.statistics()
        self._core.model_ready(name)


# -- a round -----------------------------------------------------------------------------------------------------------


def run_round(
    options: CoreOptions,
    write: Callable[[str, dict[str, bytes]], None],
    seed: int,
    seconds: float,
    notes: Notes,
    report: Report,
    patience: float,
) -> bool:
    """One server from its start to its stop; False if something did not return, so that there is no next one."""
    core = ServingCore(options)
    core.start()
    deadline = time.monotonic() + seconds
    workspace = options.workspace_directory
    assert workspace is not None
    workers = [Worker(core, workspace, write, seed * THREADS + number, report) for number in range(THREADS)]
    threads = [threading.Thread(target=worker.run, args=(deadline,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    for thread, worker in zip(threads, workers, strict=True):
        while thread.is_alive():
            thread.join(1)
            since = worker.call.since
            if since and time.monotonic() - since > patience:
                report.fault(f"{worker.call.text} did not return in {patience:.0f} s")
                faulthandler.dump_traceback(all_threads=True)
                return False
    for name in MODELS:
        _settle(core, name, report)
    if core.workspace_fault is not None:
        report.fault(f"the workspace cannot be used any more: {core.workspace_fault}")
    core.stop()
    report.rounds += 1
    for fault in notes.judge():
        report.fault(fault)
    return True


def _settle(core: ServingCore, name: str, report: Report) -> None:
    """With nobody else about, a model is what the index says."""
    states = [entry["state"] for entry in core.index() if entry["name"] == name and "version" in entry]
    if core.model_ready(name) != ("READY" in states):
        report.fault(f"model {name}: the index has {states}, and ready is {core.model_ready(name)}")


@contextmanager
def nothing_left_behind(places: list[Path], report: Report) -> Iterator[None]:
    """Threads and directories before and after."""
    before = threading.active_count()
    yield
    deadline = time.monotonic() + 30
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    left = sorted(thread.name for thread in threading.enumerate()) if threading.active_count() > before else []
    if left:
        report.fault(f"threads: {before} before, now {left}")
    for place in places:
        directories = [str(path) for path in place.glob("*") if path.is_dir()]
        if directories:
            report.fault(f"left behind: {directories}")


# -- all of it ---------------------------------------------------------------------------------------------------------


def soak(
    seconds: float,
    seed: int,
    *,
    round_seconds: float = ROUND_SECONDS,
    store: Store | None = None,
    patience: float = PATIENCE_SECONDS,
) -> Report:
    """Rounds for ``seconds`` seconds."""
    report = Report()
    notes = Notes(seed, RATE)
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as scratch:
        local, agents, workspace = Path(scratch, "models"), Path(scratch, "agents"), Path(scratch, "workspace")
        local.mkdir()
        write_agents(agents, notes)

        def write(name: str, files: dict[str, bytes]) -> None:
            if store is not None and name in "bdf":
                store.write(name, files)
            else:
                write_local(local, name, files)

        for name in MODELS:
            write(name, model_files(name, random.Random(seed)))
        options = CoreOptions(
            repositories=(str(local), *([store.url] if store is not None else [])),
            control_mode=ControlMode.EXPLICIT,
            repoagent_directory=agents,
            workspace_directory=workspace,
            cache_directory=Path(scratch, "cache"),
            exit_timeout_seconds=300,
        )
        with ServingCore(options) as core:  # What is imported once is not a leak.
            for name in MODELS:
                with suppress(RepoAgentError):
                    core.load(name)
        notes.judge()
        while (left := end - time.monotonic()) > 0:
            whole = min(round_seconds, left)
            with nothing_left_behind([workspace], report):
                if not run_round(options, write, seed + report.rounds, whole, notes, report, patience):
                    break
    report.calls = notes.calls
    return report


@pytest.fixture(autouse=True)
def silent(caplog: pytest.LogCaptureFixture) -> None:
    """The faults are made on purpose."""
    caplog.set_level(logging.CRITICAL + 1, "repoagent")


@pytest.mark.slow
def test_models_whose_agents_raise_anywhere_live_legal_lives_and_every_call_returns() -> None:
    report = soak(in_full(1800, otherwise=18), seed=0, round_seconds=in_full(ROUND_SECONDS, otherwise=6.0))
    print(report)
    assert report.faults == []
    assert report.rounds >= 3
    assert {"load: ok", "load: InternalError", "unload: ok", "infer: ok"} <= set(report.outcomes)


@pytest.mark.slow
@pytest.mark.skipif(not IN_FULL, reason="takes half an hour: a store stands still for a minute")
def test_every_call_returns_while_a_store_stands_still() -> None:
    store = Store()
    stopper = threading.Timer(600, store.stop_for, [60])
    stopper.start()
    report = soak(1800, seed=0, store=store)
    stopper.join()
    store.close()
    print(report)
    assert report.faults == []
