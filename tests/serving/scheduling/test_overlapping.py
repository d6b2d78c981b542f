"""Instances whose runs have two halves: all that holds of the others, and the next batch begins before one ends.

Everything that the tests of the assistant show is shown here again, with such instances.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from repoagent.errors import InternalError
from repoagent.serving.instances.backend import Capability
from repoagent.serving.requests.tensor import Tensor
from repoagent.serving.scheduling import assistant
from tests.serving.scheduling.conftest import Bench
from tests.serving.scheduling.test_assistant import (  # noqa: F401 - they run here as well
    test_a_batch_is_not_kept_for_a_busy_instance_while_a_worker_has_an_idle_one,
    test_a_batch_that_is_not_full_is_left_open,
    test_a_batch_that_is_ready_may_be_cancelled_as_a_whole,
    test_a_full_batch_is_ready_when_the_model_is,
    test_a_model_that_is_done_waits_for_the_batch_that_is_being_made,
    test_a_preferred_size_is_full_enough,
    test_a_request_cancelled_in_a_batch_that_is_ready_is_not_executed,
    test_answers_leave_in_order_if_that_is_asked_for,
    test_closing_turns_away_a_batch_that_is_ready,
    test_closing_turns_away_what_is_being_made,
    test_no_more_wait_than_the_queue_has_room_for,
    test_of_several_instances_the_one_that_is_free_first_goes_on,
    test_requests_whose_time_may_be_over_first_are_not_taken_early,
    test_the_parts_of_a_requests_time_add_up,
    test_urgent_requests_still_overtake_a_full_batch,
    wait_until_ready,
)

PAIRS = "max_batch_size: 2 dynamic_batching { }"


@pytest.fixture
def bench() -> Iterator[Any]:
    benches: list[Bench] = []

    def make(text: str, **options: Any) -> Bench:
        benches.append(Bench(text, staged=True, **options))
        return benches[-1]

    yield make
    for item in benches:
        item.close()


def _plugged(subject: Any, *values: float) -> list[Any]:
    subject.plug()
    answers = [subject.submit(value) for value in values]
    wait_until_ready(subject, 2)
    return answers


def test_the_next_batch_begins_before_one_ends(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assistant, "_MOMENT_SECONDS", 60.0)
    subject = bench(PAIRS)
    answers = _plugged(subject, 1, 2, 3, 4, 5, 6)
    subject.unplug()
    assert [answer.value() for answer in answers] == [2, 4, 6, 8, 10, 12]
    events = [subject.event() for _ in range(6)]
    assert events.index(("begin", [3, 4])) < events.index(("run", [1, 2]))
    assert events.index(("begin", [5, 6])) < events.index(("run", [3, 4]))
    assert [values for kind, values in events if kind == "run"] == [[1, 2], [3, 4], [5, 6]]


def test_answers_leave_in_the_order_in_which_batches_began(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assistant, "_MOMENT_SECONDS", 60.0)
    subject = bench("max_batch_size: 2 dynamic_batching { preserve_ordering: true }")
    _plugged(subject, 1, 2, 3, 4, 5, 6)
    subject.unplug()
    assert subject.answered(7) == [0.5, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("half", ["begin", "finish"])
def test_a_half_that_fails_fails_its_batch_alone(bench: Any, monkeypatch: pytest.MonkeyPatch, half: str) -> None:
    monkeypatch.setattr(assistant, "_MOMENT_SECONDS", 60.0)
    subject = bench(PAIRS)
    (runner,) = subject.runners
    whole = getattr(runner, half)

    def broken(*arguments: Any) -> Any:
        inputs = arguments[0]["x"] if half == "begin" else [arguments[0][0]["x"].array]
        if np.concatenate(list(inputs)).flat[0] == 3:
            raise RuntimeError("made to fail")
        return whole(*arguments)

    monkeypatch.setattr(runner, half, broken)
    answers = _plugged(subject, 1, 2, 3, 4, 5, 6)
    subject.unplug()
    assert [answer.value() for answer in answers[:2]] == [2, 4]
    for answer in answers[2:4]:
        error = answer.error()
        assert isinstance(error, InternalError)
        assert str(error) == "RuntimeError: made to fail"
    assert [answer.value() for answer in answers[4:]] == [10, 12]


def test_closing_ends_what_has_begun(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = bench(PAIRS)
    answers = _plugged(subject, 1, 2)
    subject.unplug()
    subject.scheduler.close()
    for answer in answers:
        response = answer.response()
        assert response.error is not None or float(response.outputs["y"].array.flat[0]) in (2, 4)


def test_both_forms_give_the_same(bench: Any) -> None:
    subject = bench(PAIRS)
    (instance,) = subject.scheduler.instances
    assert Capability.OVERLAPS in instance.capabilities
    request = subject.request(3)
    (runner,) = subject.runners
    plain = runner.run(request.inputs, ())["y"].array
    halves = runner.finish(runner.begin({"x": [Tensor.of(request.inputs["x"].array).array]}, ()))["y"].array
    np.testing.assert_array_equal(plain, halves)
