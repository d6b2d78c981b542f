import threading
from typing import Any

import pytest

from repoagent.config import read_text
from repoagent.errors import InvalidArgumentError
from repoagent.serving.instances.backend import BackendModel
from repoagent.serving.instances.runner_instances import RunnerInstance
from repoagent.serving.measuring.statistics import ModelStatistics
from repoagent.serving.scheduling.direct import DirectScheduler
from repoagent.serving.versions.served_model import Gate, RetiredError, ServedModel
from tests.serving.version_contexts import version_of

CONFIG = """
name: "m"
input { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1, 4 ] }
"""


class NoModel(BackendModel):
    closed = False

    def create_instance(self, spec: Any) -> Any:
        raise AssertionError

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def make(new_runner: Any) -> Any:
    def served(extra: str = "") -> ServedModel:
        statistics = ModelStatistics()
        scheduler = DirectScheduler("m", [RunnerInstance(version_of(statistics), new_runner())], statistics)
        config = read_text(CONFIG + extra)
        version = version_of(statistics, config=config)
        return ServedModel(version, backend_model=NoModel(), scheduler=scheduler)

    return served


def test_a_retired_version_takes_nothing_and_answers_nobody(make: Any, request_of: Any, new_sender: Any) -> None:
    served, sender = make(), new_sender()
    served.retire()
    with pytest.raises(RetiredError):
        served.infer(request_of())
    request = request_of(sender=sender)
    with pytest.raises(RetiredError):
        served.submit(request)
    assert sender.sent.empty()
    assert request.redirect(sender) is sender
    served.close()


def test_a_submitted_request_counts_as_running_until_its_final_answer(
    make: Any, request_of: Any, new_sender: Any
) -> None:
    served, sender = make(), new_sender()
    served.submit(request_of(sender=sender))
    assert sender.final().error is None
    served.retire()
    assert served.drain(60)
    assert served.running == 0
    served.close()


def test_a_request_can_be_used_again(make: Any, request_of: Any, new_sender: Any) -> None:
    served, sender = make(), new_sender()
    request = request_of(sender=sender)
    for _ in range(3):
        served.submit(request)
        assert sender.final().error is None
    served.close()


def test_a_decoupled_model_is_not_for_callers_that_want_one_answer(make: Any, request_of: Any) -> None:
    served = make("model_transaction_policy { decoupled: true }")
    with pytest.raises(InvalidArgumentError, match="use 'infer' of a Model, or 'submit'"):
        served.infer(request_of())
    served.close()


def test_nobody_enters_a_shut_gate() -> None:
    gate = Gate()
    assert gate.enter()
    gate.shut()
    assert not gate.enter()
    assert gate.inside == 1


def test_an_empty_gate_is_not_waited_for() -> None:
    assert Gate().wait_empty(0)


def test_waiting_ends_when_the_last_one_leaves() -> None:
    gate = Gate()
    gate.enter()
    gate.enter()
    gate.shut()
    assert not gate.wait_empty(0)
    results: list[bool] = []
    waiter = threading.Thread(target=lambda: results.append(gate.wait_empty(10)))
    waiter.start()
    gate.leave()
    gate.leave()
    waiter.join(60)
    assert results == [True]


def test_after_a_crowd_nobody_is_counted_that_is_not_inside() -> None:
    gate, start = Gate(), threading.Barrier(5)
    entered: list[int] = []

    def come_and_go() -> None:
        start.wait(60)
        times = 0
        while gate.enter():
            gate.leave()
            times += 1
        entered.append(times)

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    start.wait(60)
    assert gate.enter()
    gate.shut()
    for thread in threads:
        thread.join(60)
    assert len(entered) == 4
    assert gate.inside == 1
    gate.leave()
    assert gate.wait_empty(0)
