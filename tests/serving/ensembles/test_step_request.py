"""``max_inflight_requests``: a step of an ensemble has at most that many requests at its member; others wait."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repoagent.errors import CancelledError
from repoagent.serving.core import ServingCore
from repoagent.serving.ensembles.plan import Step
from repoagent.serving.ensembles.run import EnsembleRun, Scope
from repoagent.serving.ensembles.step_request import SequenceMarks, StepLimiter, StepRequest
from repoagent.serving.requests.request import DISCARD, Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor
from tests.waiting import until

Maker = Callable[..., ServingCore]
Writer = Callable[..., Any]

TENSORS = 'input { name: "x" data_type: TYPE_FP32 dims: [1] } output { name: "y" data_type: TYPE_FP32 dims: [1] }\n'
DECOUPLED = "model_transaction_policy { decoupled: true }"

PRODUCER = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(pb_utils.get_input_tensor_by_name(request, "x").as_numpy()[0])
            for number in range(count):
                y = pb_utils.Tensor("y", np.array([number], np.float32))
                sender.send(pb_utils.InferenceResponse(output_tensors=[y]))
                with open("PROGRESS", "a") as progress:
                    progress.write(".")
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
"""

CONSUMER = """
import os

class TritonPythonModel:
    def initialize(self, args):
        self.tokens = os.open("TOKENS", os.O_RDWR)

    def execute(self, requests):
        responses = []
        for request in requests:
            os.read(self.tokens, 1)
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x + 0)]))
        return responses

    def finalize(self):
        os.close(self.tokens)
"""

STEPS = """
ensemble_scheduling { %s
  step { model_name: "p" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "t" } }
  step { model_name: "c" model_version: -1 input_map { key: "x" value: "t" } output_map { key: "y" value: "y" } }
}
"""


STEP = Step(0, "m", "", {}, {}, frozenset(), 0, 0)


class _Run(EnsembleRun):
    """Counts how often a request is reported to stand in line no more."""

    stopped = False

    def __init__(self) -> None:
        self.request = InferRequest(Asked("e", {}))
        self.left = 0

    def left_line(self) -> None:
        self.left += 1


class _ThenCalled:
    """A lock; ``after`` is called when it is released for the first time."""

    def __init__(self, lock: threading.Lock, after: Callable[[], None]) -> None:
        self._lock, self._after = lock, [after]

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()
        if self._after:
            self._after.pop()()


class Pipeline:
    """A producer, and a consumer that takes one token per request."""

    def __init__(self, core: ServingCore, progress: Path, tokens: int) -> None:
        self.core = core
        self._progress = progress
        self._tokens = tokens

    @property
    def produced(self) -> int:
        return self._progress.stat().st_size

    def release(self, count: int = 1) -> None:
        os.write(self._tokens, b"." * count)

    def ask(self, count: int, sender: Any) -> InferRequest:
        request = InferRequest(Asked("e", {"x": Tensor.of(np.array([count], np.float32))}), sender)
        self.core.submit(request)
        return request

    def await_produced(self, count: int) -> None:
        until(lambda: self.produced >= count, lambda: f"{self.produced} of {count}")


@pytest.fixture
def pipeline(tmp_path: Path, new_core: Maker, write_member: Writer, write_ensemble: Writer) -> Iterator[Any]:
    progress, fifo = tmp_path / "progress", tmp_path / "tokens"
    progress.touch()
    os.mkfifo(fifo)
    tokens = os.open(fifo, os.O_RDWR)

    def start(write: Writer, limit: str = "max_inflight_requests: 2") -> Pipeline:
        write("p", TENSORS + DECOUPLED, PRODUCER.replace("PROGRESS", str(progress)))
        write_member("c", TENSORS, CONSUMER.replace("TOKENS", str(fifo)))
        write_ensemble("e", TENSORS + STEPS % limit)
        core = new_core()
        core.load("e")
        return Pipeline(core, progress, tokens)

    yield start
    os.close(tokens)


@pytest.mark.slow
def test_a_decoupled_member_waits_while_the_next_step_has_no_place(
    pipeline: Callable[..., Pipeline], write_anywhere: Writer, new_sender: Any
) -> None:
    """In process it is at most one answer ahead; a process of its own runs ahead by what it sends without waiting."""
    line = pipeline(write_anywhere)
    sender, count = new_sender(), 300
    line.ask(count, sender)
    line.await_produced(2)
    ahead = []
    for number in range(count):
        ahead.append(line.produced - number)
        line.release()
        response, final = sender.sent.get(timeout=60)
        assert response.outputs["y"].array.tolist() == [number]
        assert not final or number == count - 1
    assert final or sender.sent.get(timeout=60) == (None, True)
    assert max(ahead) <= 80, "without a limit all 300 would have been made while the first one was consumed"


def test_it_goes_on_as_soon_as_there_is_a_place(
    pipeline: Callable[..., Pipeline], write_member: Writer, new_sender: Any
) -> None:
    line = pipeline(write_member)
    sender = new_sender()
    line.ask(10, sender)
    for number in range(8):
        line.await_produced(min(number + 2, 10))
        assert line.produced <= number + 3
        line.release()
        sender.sent.get(timeout=60)
    line.release(2)
    assert sender.sent.get(timeout=60)[1] is False
    assert sender.sent.get(timeout=60)[1] or sender.sent.get(timeout=60) == (None, True)


def test_the_limit_is_for_all_requests_to_the_ensemble_together(
    pipeline: Callable[..., Pipeline], write_member: Writer, new_sender: Any
) -> None:
    line = pipeline(write_member, "max_inflight_requests: 1")
    senders = [new_sender() for _ in range(20)]
    for sender in senders:
        line.ask(1, sender)
    line.release(20)
    for sender in senders:
        response, final = sender.sent.get(timeout=60)
        assert response.error is None
        assert final or sender.sent.get(timeout=60) == (None, True)


@pytest.mark.slow
def test_cancelling_lets_go_of_the_member_and_of_the_line(
    pipeline: Callable[..., Pipeline], write_anywhere: Writer, new_sender: Any
) -> None:
    line = pipeline(write_anywhere, "max_inflight_requests: 1")
    first, second = new_sender(), new_sender()
    request = line.ask(5, first)
    line.await_produced(1)
    line.ask(1, second)
    request.cancel()
    line.release(10)
    answers = [first.sent.get(timeout=60)]
    while not answers[-1][1]:
        answers.append(first.sent.get(timeout=60))
    assert isinstance(answers[-1][0].error, CancelledError)
    assert second.sent.get(timeout=60)[0].outputs["y"].array.tolist() == [0]


def test_quick_members_do_not_nest_in_each_other(new_core: Maker, write_model: Any, ensemble_config: Any) -> None:
    """A thousand requests wait for one place at a model that answers at once."""
    write_model("a", {1: "1"})
    settings = ensemble_config(("a", {"x": "x"}, {"y": "y"}))
    write_model("e", {}, settings.replace("ensemble_scheduling {", "ensemble_scheduling { max_inflight_requests: 1"))
    core = new_core()
    core.load("e")
    done, lock, count = threading.Event(), threading.Lock(), 1000
    errors: list[Any] = []

    class Counting:
        left = count

        def send(self, response: Any, final: bool) -> None:
            with lock:
                errors.extend([response.error] if response.error is not None else [])
                Counting.left -= 1
                if not Counting.left:
                    done.set()

    for _ in range(count):
        core.submit(InferRequest(Asked("e", {"x": Tensor.of(np.ones((1, 4), np.float32))}), Counting()))
    assert done.wait(60)
    assert errors == []


def test_a_request_that_gets_its_place_as_it_joins_the_line_is_submitted_once() -> None:
    """Another thread gives the place away right after the request has stood in line."""
    submitted: list[Any] = []
    limiter = StepLimiter(1, submitted.append)
    first, second = (StepRequest(_Run(), STEP, Scope(0, {}), {}, SequenceMarks(), DISCARD) for _ in range(2))
    limiter.enter(first)
    limiter._lock = _ThenCalled(limiter._lock, limiter.leave)  # type: ignore[assignment]
    limiter.enter(second)
    assert submitted == [first, second]
    assert [request.run.left for request in (first, second)] == [1, 1]  # type: ignore[attr-defined]
