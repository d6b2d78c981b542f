"""What a model's process keeps of the requests that it has answered."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repoagent.serving.backends.python.process.child import Executions
from repoagent.serving.backends.python.process.memory import sealed_file
from repoagent.serving.backends.python.process.remote import Response
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.senders import submit_and_wait
from repoagent.serving.requests.tensor import Tensor


@pytest.fixture
def forked() -> None:
    """Processes are started here, not forked."""


CONFIG = """
backend: "python" parameters {{ key: "EXECUTION" value {{ string_value: "process" }} }}
model_transaction_policy {{ decoupled: {decoupled} }}
input {{ name: "x" data_type: TYPE_FP32 dims: [-1] }} output {{ name: "y" data_type: TYPE_INT64 dims: [1] }}
"""
# Answers how many requests are in memory, which no collector cleans up.
MODEL = """
import gc
import numpy as np
import triton_python_backend_utils as pb_utils
from repoagent.serving.backends.python.process.remote import RemoteRequest
gc.disable()
class TritonPythonModel:
    def execute(self, requests):
        alive = sum(type(entry) is RemoteRequest for entry in gc.get_objects())
        answer = pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([alive]))])
        if {decoupled}:
            requests[0].get_response_sender().send(answer, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return None
        return [answer]
"""


@pytest.mark.parametrize("decoupled", [False, True])
def test_an_answered_request_leaves_the_process_without_its_garbage_collector(tmp_path: Path, decoupled: bool) -> None:
    directory = tmp_path / "m" / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(MODEL.format(decoupled=decoupled))
    (directory.parent / "config.pbtxt").write_text(CONFIG.format(decoupled=str(decoupled).lower()))
    options = CoreOptions(repositories=(str(tmp_path),), control_mode=ControlMode.NONE, repoagent_directory=None)
    with ServingCore(options) as core:
        x = Tensor.of(np.zeros(10_000, np.float32))
        answers = [submit_and_wait(core.submit, InferRequest(Asked("m", {"x": x})), "m") for _ in range(5)]
    assert [answer.outputs["y"].array.item() for answer in answers] == [1] * 5


Make = Callable[..., Executions]


class Said:
    """What was done and said, in order. The execution of request 1 waits for ``go``."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.begun = threading.Event()
        self.go = threading.Event()

    def run(self, bodies: list[Any], _: Any) -> list[Response]:
        (number,) = bodies[0]
        if number == 1:
            self.begun.set()
            assert self.go.wait(60)
        self.events.append(number)
        return []

    def answer(self, _: list[Response], __: list[list[int]], last: bool) -> None:
        if last:
            self.events.append("last")

    def returned(self, numbers: list[int]) -> None:
        self.events.append(numbers)


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
def make(said: Said) -> Iterator[Make]:
    """Makes executions; their parts are those of ``said``, unless given."""
    file = open(sealed_file(8), "r+b")  # noqa: SIM115 - closed below
    with closing(file):
        yield lambda **parts: Executions(file.fileno(), said.run, said.answer, **{"returned": said.returned, **parts})


def given(*numbers: int) -> list[list[Any]]:
    """Executions of one request each."""
    return [[[number]] for number in numbers]


def test_what_is_asked_back_before_it_arrives_goes_back(make: Make, said: Said) -> None:
    executions = make()
    executions.give_back(7)
    executions.perform(given(5, 6, 7), None)
    assert said.events == [[6, 7], 5, "last"]


def test_what_comes_after_what_was_asked_back_is_executed(make: Make, said: Said) -> None:
    executions = make()
    executions.give_back(7)
    executions.perform(given(8, 9), None)
    assert said.events == [8, 9, "last"]


def test_a_question_that_comes_too_late_takes_nothing_of_the_next_message(make: Make, said: Said) -> None:
    executions = make()
    said.go.set()
    executions.perform(given(1, 2), None)
    said.begun.clear()
    said.go.clear()
    thread = threading.Thread(target=executions.perform, args=([[[1]], [[3]]], None))
    thread.start()
    assert said.begun.wait(60)
    executions.give_back(2)
    said.go.set()
    thread.join(60)
    assert said.events == [1, 2, "last", 1, 3, "last"]


def test_the_server_hears_what_comes_back_before_the_end(make: Make, said: Said) -> None:
    """Else it misses an execution when it hears of the end, and takes the process for one that lies."""

    def returned(numbers: list[int]) -> None:
        said.go.set()
        thread.join(0.2)  # Long enough to end, if it does not wait for this.
        said.events.append(numbers)

    executions = make(returned=returned)
    thread = threading.Thread(target=executions.perform, args=(given(1, 2), None))
    thread.start()
    assert said.begun.wait(60)
    executions.give_back(2)
    thread.join(60)
    assert said.events == [1, [2], "last"]
