"""A clock that stands still, models that write down what they execute, and schedulers over both."""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from repoagent.config import ModelConfig, check, normalize, read_text
from repoagent.serving.instances.backend import BatchRunner, Capability
from repoagent.serving.instances.runner_instances import RunnerInstance, StagedRunnerInstance
from repoagent.serving.measuring.latencies import RunTime
from repoagent.serving.measuring.statistics import ModelStatistics
from repoagent.serving.requests.request import Asked, InferRequest, InferResponse
from repoagent.serving.requests.tensor import Tensor
from repoagent.serving.scheduling.response_cache import ResponseCache
from repoagent.serving.scheduling.scheduler import Scheduler
from repoagent.serving.scheduling.steps import Clock
from repoagent.serving.versions.instance_set import new_scheduler
from tests.serving.version_contexts import version_of

MS = 1_000_000
PATIENCE = 120.0

TENSORS = """
    input {{ name: "x" data_type: TYPE_FP32 dims: [ {dims} ] }}
    output {{ name: "y" data_type: TYPE_FP32 dims: [ {dims} ] }}
"""


class FakeClock(Clock):
    """Time that only a test moves. ``events`` gets ``("sleep", until)`` whenever a thread waits for a time."""

    def __init__(self, events: "queue.SimpleQueue[tuple[str, Any]] | None" = None) -> None:
        self._now = 1_000_000_000
        self._lock = threading.Lock()
        self._conditions: list[threading.Condition] = []
        self.events: queue.SimpleQueue[tuple[str, Any]] = events or queue.SimpleQueue()

    def now_ns(self) -> int:
        return self._now

    def wait(self, condition: threading.Condition, until_ns: int | None) -> None:
        with self._lock:
            if until_ns is not None and until_ns <= self._now:
                return
            if condition not in self._conditions:
                self._conditions.append(condition)
        if until_ns is not None:
            self.events.put(("sleep", until_ns))
        condition.wait(PATIENCE)

    def advance(self, ns: int) -> None:
        """Let ``ns`` pass and wake up everyone who waits."""
        with self._lock:
            self._now += ns
            conditions = list(self._conditions)
        for condition in conditions:
            with condition:
                condition.notify_all()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class RecordingRunner(BatchRunner):
    """Answers ``y = 2 x`` and writes down every batch. While held, an execution does not end."""

    def __init__(self, events: "queue.SimpleQueue[tuple[str, Any]]", batches: list[list[float]]) -> None:
        self._events = events
        self._batches = batches
        self.inputs: list[Mapping[str, Tensor]] = []
        self.free = threading.Event()
        self.free.set()
        self.closed = False

    def run(self, inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> dict[str, Tensor]:
        values = [float(row.flat[0]) for row in inputs["x"].array]
        self.inputs.append(dict(inputs))
        self._batches.append(values)
        self._events.put(("run", values))
        assert self.free.wait(PATIENCE)
        return {"y": Tensor.of(inputs["x"].array * np.float32(2))}

    def close(self) -> None:
        self.closed = True


class StagedRecordingRunner(RecordingRunner):
    """The same in two halves. What is executed is written down at the end, and the halves among the events."""

    capabilities = Capability.OVERLAPS

    def begin(self, inputs: Mapping[str, Sequence[Any]], outputs: Sequence[str]) -> Any:
        joined = {name: Tensor.of(np.concatenate(list(parts))) for name, parts in inputs.items()}
        self._events.put(("begin", [float(row.flat[0]) for row in joined["x"].array]))
        return joined, outputs

    def finish(self, begun: Any) -> dict[str, Tensor]:
        return self.run(*begun)


class Answers:
    """A sender that keeps what it gets, and in what order requests were answered altogether."""

    def __init__(self, name: object, order: "queue.SimpleQueue[Any]") -> None:
        self._name = name
        self._order = order
        self._sent: queue.SimpleQueue[tuple[InferResponse | None, bool]] = queue.SimpleQueue()
        self.finals = 0

    def send(self, response: InferResponse | None, final: bool) -> None:
        self.finals += final
        self._sent.put((response, final))
        if final:
            self._order.put(self._name)

    @property
    def arrived(self) -> bool:
        return not self._sent.empty()

    def response(self) -> InferResponse:
        response, final = self._sent.get(timeout=PATIENCE)
        assert final
        assert response is not None
        return response

    def value(self) -> float:
        response = self.response()
        assert response.error is None, response.error
        return float(response.outputs["y"].array.flat[0])

    def error(self) -> Exception:
        response = self.response()
        assert response.error is not None, "answered, although it was to fail"
        return response.error


class Bench:
    """A scheduler made from a configuration, over recording runners and a clock that stands still."""

    def __init__(
        self,
        text: str,
        *,
        instances: int = 1,
        dims: str = "1",
        clock: Clock | None = None,
        cache: ResponseCache | None = None,
        run_time: RunTime | None = None,
        staged: bool = False,
    ) -> None:
        self.config = complete_config(text, dims)
        self.events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self.clock = clock or FakeClock(self.events)
        self.statistics = ModelStatistics()
        self.batches: list[list[float]] = []
        self.order: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.run_time = run_time or RunTime()
        kind = StagedRecordingRunner if staged else RecordingRunner
        self.runners = [kind(self.events, self.batches) for _ in range(instances)]
        self.scheduler: Scheduler = new_scheduler(
            version_of(self.statistics, config=self.config),
            [self._instance(runner) for runner in self.runners],
            cache=cache,
            clock=self.clock,
        )

    def _instance(self, runner: BatchRunner) -> RunnerInstance:
        version = version_of(self.statistics, config=self.config, run_time=self.run_time)
        kind = StagedRunnerInstance if Capability.OVERLAPS in runner.capabilities else RunnerInstance
        return kind(version, runner)

    def request(self, value: float, *, rows: int = 1, width: int = 1, **fields: Any) -> InferRequest:
        shape = (rows, width) if self.config.max_batch_size else (width,)
        array = np.full(shape, value, np.float32)
        request = InferRequest(Asked("m", {"x": Tensor.of(array)}, **fields))
        request.arrival_ns = self.clock.now_ns()
        return request

    def submit(self, value: float, **fields: Any) -> Answers:
        """Submit a request whose answer will be twice ``value``."""
        return self.submit_request(self.request(value, **fields), value)

    def submit_request(self, request: InferRequest, name: object) -> Answers:
        answers = Answers(name, self.order)
        request.redirect(answers)
        self.scheduler.submit(request)
        return answers

    def plug(self, value: float = 0.5, **fields: Any) -> Answers:
        """Keep one instance busy until :meth:`unplug`; what is submitted meanwhile must wait."""
        for runner in self.runners:
            runner.free.clear()
        answers = self.submit(value, **fields)
        self.wait_for_run([value])
        return answers

    def unplug(self) -> None:
        self.batches.clear()
        for runner in self.runners:
            runner.free.set()

    def event(self) -> tuple[str, Any]:
        """The next thing that happened: an execution, or a thread that waits for a time."""
        return self.events.get(timeout=PATIENCE)

    def wait_for_run(self, values: list[float]) -> None:
        while self.event() != ("run", values):
            pass

    def advance_ms(self, milliseconds: float) -> None:
        assert isinstance(self.clock, FakeClock)
        self.clock.advance(int(milliseconds * MS))

    def answered(self, count: int) -> list[Any]:
        """Whose answers came, in that order."""
        return [self.order.get(timeout=PATIENCE) for _ in range(count)]

    def close(self) -> None:
        for runner in self.runners:
            runner.free.set()
        self.scheduler.close()


def complete_config(text: str, dims: str = "1") -> ModelConfig:
    """A checked configuration with an input ``x`` and an output ``y``, both FP32[``dims``]."""
    config = normalize(read_text(f'name: "m"\nbackend: "b"\n{TENSORS.format(dims=dims)}\n{text}'))
    check(config, complete=True)
    return config


@pytest.fixture
def config_of() -> Callable[..., ModelConfig]:
    return complete_config


BenchMaker = Callable[..., Bench]


@pytest.fixture
def bench() -> Iterator[BenchMaker]:
    """Makes benches and closes them in the end."""
    benches: list[Bench] = []

    def make(text: str, **options: Any) -> Bench:
        benches.append(Bench(text, **options))
        return benches[-1]

    yield make
    for item in benches:
        item.close()
