"""Whole sequences through the scheduler. The runner sees a placeholder as a row of zeros."""

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from repoagent.errors import CancelledError, InvalidArgumentError, UnavailableError
from repoagent.serving.requests.request import DISCARD, InferRequest
from repoagent.serving.scheduling.steps import Clock

DIRECT = "max_batch_size: 4 sequence_batching { direct { } }"
OLDEST = "max_batch_size: 4 sequence_batching { oldest { max_candidate_sequences: 4 } }"
BOTH = pytest.mark.parametrize("text", [DIRECT, OLDEST], ids=["direct", "oldest"])


def in_sequence(subject: Any, value: float, sequence: int | str, flags: str = "", **fields: Any) -> Any:
    return subject.submit(
        value, correlation_id=sequence, sequence_start="S" in flags, sequence_end="E" in flags, **fields
    )


def test_direct_sequences_keep_their_rows(bench: Any) -> None:
    subject = bench(DIRECT)
    assert [in_sequence(subject, value, value, "S").value() for value in (1, 2, 3)] == [2, 4, 6]
    subject.batches.clear()
    assert in_sequence(subject, 30, 3).value() == 60
    assert in_sequence(subject, 20, 2, "E").value() == 40
    assert in_sequence(subject, 40, 4, "S").value() == 80
    assert subject.batches == [[0, 0, 30], [0, 20], [0, 40]]


def test_direct_requests_of_different_sequences_share_a_batch(bench: Any) -> None:
    subject = bench(DIRECT)
    subject.plug(0.5, correlation_id=9, sequence_start=True)
    answers = [in_sequence(subject, value, value, "S") for value in (1, 2)]
    answers.append(in_sequence(subject, 10, 1, "E"))
    subject.unplug()
    assert [answer.value() for answer in answers] == [2, 4, 20]
    assert subject.batches == [[0, 1, 2], [0, 10]]


def test_a_direct_request_of_another_shape_leaves_its_row_empty(bench: Any) -> None:
    subject = bench(DIRECT, dims="-1")
    subject.plug(0.5, correlation_id=9, sequence_start=True, sequence_end=True)
    answers = [in_sequence(subject, value, value, "S", width=width) for value, width in [(1, 2), (2, 3), (3, 2)]]
    subject.unplug()
    assert [answer.value() for answer in answers] == [2, 4, 6]
    assert subject.batches == [[1, 0, 3], [0, 2]]


@BOTH
def test_the_requests_of_a_sequence_are_executed_one_after_the_other(bench: Any, text: str) -> None:
    subject = bench(text)
    subject.plug(0.5, correlation_id=1, sequence_start=True)
    answers = [in_sequence(subject, value, 1, "E" if value == 3 else "") for value in (1, 2, 3)]
    subject.unplug()
    assert [answer.value() for answer in answers] == [2, 4, 6]
    assert subject.batches == [[1], [2], [3]]


def test_oldest_requests_need_no_placeholders(bench: Any) -> None:
    subject = bench(OLDEST)
    for value in (1, 2):
        in_sequence(subject, value, value, "S").value()
    subject.plug(10, correlation_id=1)
    answers = [in_sequence(subject, value, sequence) for value, sequence in [(20, 2), (11, 1), (21, 2)]]
    third = in_sequence(subject, 3, 3, "S")
    subject.unplug()
    assert [answer.value() for answer in (*answers, third)] == [40, 22, 42, 6]
    assert sorted(value for batch in subject.batches for value in batch) == [3, 11, 20, 21]
    assert all(not {20, 21} <= set(batch) for batch in subject.batches)


@BOTH
def test_sequences_beyond_the_slots_wait_for_one(bench: Any, text: str) -> None:
    subject = bench(text.replace("max_candidate_sequences: 4", "max_candidate_sequences: 2").replace(": 4", ": 2"))
    for sequence in (1, 2):
        in_sequence(subject, 1, sequence, "S").value()
    third = [in_sequence(subject, value, 3, flags) for value, flags in [(30, "S"), (31, "")]]
    assert subject.scheduler.waiting == 2
    in_sequence(subject, 10, 1, "E").value()
    assert [answer.value() for answer in third] == [60, 62]
    in_sequence(subject, 20, 2, "E").value()
    assert in_sequence(subject, 32, 3, "E").value() == 64


@BOTH
def test_a_waiting_sequence_gets_the_slot_of_an_idle_one(bench: Any, text: str) -> None:
    subject = bench(single_slot(text))
    in_sequence(subject, 1, 1, "S").value()
    second = in_sequence(subject, 2, 2, "S")
    assert not second.arrived
    subject.advance_ms(1)
    assert second.value() == 4
    error = in_sequence(subject, 1, 1).error()
    assert isinstance(error, InvalidArgumentError)
    assert "must specify the START flag" in str(error)


def single_slot(text: str) -> str:
    return (
        text.replace("sequence_batching {", "sequence_batching { max_sequence_idle_microseconds: 1000")
        .replace("max_candidate_sequences: 4", "max_candidate_sequences: 1")
        .replace("max_batch_size: 4", "max_batch_size: 1")
    )


@BOTH
def test_a_waiting_sequence_gets_the_slot_of_one_that_waited_itself_and_is_idle(bench: Any, text: str) -> None:
    subject = bench(single_slot(text))
    first = subject.plug(0.5, correlation_id=1, sequence_start=True, sequence_end=True)
    second, third = (in_sequence(subject, number, number, "S") for number in (2, 3))
    subject.unplug()
    assert (first.value(), second.value()) == (1, 4)
    assert not third.arrived
    subject.advance_ms(1)
    assert third.value() == 6


@BOTH
def test_when_no_request_will_come_sequences_do_not_wait_for_those_that_had_their_slots(bench: Any, text: str) -> None:
    subject = bench(single_slot(text))
    in_sequence(subject, 1, 1, "S").value()
    waiting = [in_sequence(subject, number, sequence, flags) for number, sequence, flags in [(2, 2, "S"), (3, 2, "")]]
    waiting += [in_sequence(subject, 4, 3, "S")]
    subject.scheduler.retire()
    assert [answer.value() for answer in waiting] == [4, 6, 8]


@BOTH
def test_an_idle_sequence_must_start_anew(bench: Any, text: str) -> None:
    subject = bench(text)
    in_sequence(subject, 1, 1, "S").value()
    subject.advance_ms(999)
    in_sequence(subject, 1, 1).value()
    subject.advance_ms(1000)
    assert "must specify the START flag" in str(in_sequence(subject, 1, 1).error())
    assert in_sequence(subject, 1, 1, "S").value() == 2


@BOTH
def test_a_timeout_takes_no_request_out_of_a_sequence_that_has_its_slot(bench: Any, text: str) -> None:
    subject = bench(text)
    subject.plug(0.5, correlation_id=1, sequence_start=True)
    other = in_sequence(subject, 1, 2, "S", timeout_us=1000)
    subject.advance_ms(2)
    subject.unplug()
    assert other.value() == 2


@BOTH
def test_a_waiting_sequence_is_given_up_after_its_timeout(bench: Any, text: str) -> None:
    subject = bench(
        text.replace("max_candidate_sequences: 4", "max_candidate_sequences: 1").replace("size: 4", "size: 1")
    )
    in_sequence(subject, 1, 1, "S").value()
    second = in_sequence(subject, 2, 2, "S", timeout_us=1000)
    subject.advance_ms(1)
    error = second.error()
    assert isinstance(error, UnavailableError)
    assert str(error) == "timeout of the corresponding sequence has been expired"
    assert subject.statistics.snapshot().failures["REJECTED"] == 1


@BOTH
def test_cancelling_a_request_that_waits_ends_its_sequence(bench: Any, text: str) -> None:
    subject = bench(text)
    subject.plug(0.5, correlation_id=1, sequence_start=True)
    request = subject.request(1, correlation_id=1)
    gone = subject.submit_request(request, 1)
    after = in_sequence(subject, 2, 1)
    request.cancel()
    assert isinstance(gone.error(), CancelledError)  # At once: the model still runs.
    assert isinstance(after.error(), CancelledError)
    assert subject.scheduler.waiting <= 1  # The mark that the sequence is over.
    subject.unplug()
    assert "must specify the START flag" in str(in_sequence(subject, 3, 1).error())
    assert in_sequence(subject, 4, 2, "S").value() == 8


@BOTH
def test_a_request_cancelled_in_line_is_answered_at_once_and_its_sequence_with_it(bench: Any, text: str) -> None:
    subject = bench(single_slot(text))
    first = subject.plug(0.5, correlation_id=1, sequence_start=True)
    request = subject.request(2, correlation_id=2, sequence_start=True)
    gone = [subject.submit_request(request, 2), in_sequence(subject, 3, 2, "E")]
    third = in_sequence(subject, 4, 3, "S")
    request.cancel()
    for answers in gone:
        assert isinstance(answers.error(), CancelledError)
    assert "must specify the START flag" in str(in_sequence(subject, 5, 2).error())
    last = in_sequence(subject, 6, 1, "E")
    subject.unplug()
    assert [answers.value() for answers in (first, last, third)] == [1, 12, 8]


@BOTH
def test_a_sequence_that_was_cancelled_during_an_execution_leaves_its_slot_afterwards(bench: Any, text: str) -> None:
    subject = bench(single_slot(text))
    first = subject.plug(0.5, correlation_id=1, sequence_start=True)
    request = subject.request(2, correlation_id=1, sequence_end=True)
    gone, other = subject.submit_request(request, 1), in_sequence(subject, 3, 2, "S")
    request.cancel()
    assert isinstance(gone.error(), CancelledError)
    assert not other.arrived
    subject.unplug()
    assert (first.value(), other.value()) == (1, 6)


@BOTH
def test_a_request_that_was_cancelled_before_it_came_ends_its_sequence(bench: Any, text: str) -> None:
    subject = bench(text)
    request = subject.request(1, correlation_id=1, sequence_start=True)
    request.cancel()
    assert isinstance(subject.submit_request(request, 1).error(), CancelledError)
    assert "must specify the START flag" in str(in_sequence(subject, 2, 1).error())
    assert in_sequence(subject, 3, 1, "S").value() == 6


def test_a_cancelled_request_in_the_batcher_is_answered_at_once_and_its_sequence_goes_on(bench: Any) -> None:
    subject = bench(OLDEST)
    subject.plug(0.5, correlation_id=1, sequence_start=True)
    request = subject.request(2, correlation_id=2, sequence_start=True)
    gone, after = subject.submit_request(request, 2), in_sequence(subject, 3, 2, "E")
    request.cancel()
    assert isinstance(gone.error(), CancelledError)
    subject.unplug()
    assert after.value() == 6


@BOTH
def test_an_error_of_the_model_does_not_end_the_sequence(bench: Any, text: str) -> None:
    subject = bench(text)
    in_sequence(subject, 1, 1, "S").value()
    instance = subject.scheduler.instances[0]
    run, instance._run = instance._run, lambda *_: 1 / 0
    assert "division by zero" in str(in_sequence(subject, 2, 1).error())
    instance._run = run
    assert in_sequence(subject, 3, 1).value() == 6


@BOTH
def test_a_request_must_be_a_single_inference_with_an_id(bench: Any, text: str) -> None:
    subject = bench(text)
    assert str(in_sequence(subject, 1, 1, "S", rows=2).error()) == (
        "inference request to model 'm' must specify batch-size 1 due to requirements of sequence batcher"
    )
    assert "non-zero or non-empty correlation ID" in str(subject.submit(1).error())
    with pytest.raises(InvalidArgumentError, match="correlation ID"):
        subject.scheduler.infer(subject.request(1))
    assert subject.statistics.snapshot().failures["OTHER"] == 3


@BOTH
def test_what_was_asked_is_as_it_was_when_it_has_been_answered(bench: Any, text: str) -> None:
    control = 'control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }'
    subject = bench(text.replace("sequence_batching {", f"sequence_batching {{ {control}"))
    request: InferRequest = subject.request(1, correlation_id=1, sequence_start=True)
    subject.scheduler.infer(request)
    assert [inputs["START"].array.tolist() for inputs in subject.runners[0].inputs] == [[[1]]]
    assert list(request.asked.inputs) == ["x"]
    assert request.redirect(DISCARD) is DISCARD


def test_direct_batches_with_placeholders_are_counted_without_them(bench: Any) -> None:
    subject = bench(DIRECT)
    in_sequence(subject, 1, 1, "S").value()
    in_sequence(subject, 2, 2, "S").value()
    entry = subject.statistics.to_dict("m", 1)
    assert entry["inference_count"] == 2
    assert entry["inference_stats"]["success"]["count"] == 2
    assert [item["batch_size"] for item in entry["batch_stats"]] == [1, 2]


def test_a_model_without_a_batch_dimension_takes_one_sequence_per_instance(bench: Any) -> None:
    subject = bench("sequence_batching { }", instances=2)
    for sequence in (1, 2):
        in_sequence(subject, sequence, sequence, "S").value()
    third = in_sequence(subject, 3, 3, "S")
    assert subject.scheduler.waiting == 1
    for _ in range(3):
        in_sequence(subject, 2, 2).value()
    in_sequence(subject, 1, 1, "E").value()
    assert third.value() == 6
    values = sorted(sorted({float(inputs["x"].array[0]) for inputs in r.inputs}) for r in subject.runners)
    assert values == [[1, 3], [2]]


@pytest.mark.parametrize(
    "strategy",
    [
        "direct { max_queue_delay_microseconds: 1000 minimum_slot_utilization: 1 }",
        "oldest { max_candidate_sequences: 2 max_queue_delay_microseconds: 1000 }",
    ],
)
def test_closing_answers_what_waits_everywhere(bench: Any, strategy: str) -> None:
    subject = bench(f"max_batch_size: 2 sequence_batching {{ {strategy} }}")
    first = in_sequence(subject, 9, 9, "S")
    assert subject.event()[0] == "sleep"
    subject.advance_ms(1)
    first.value()
    waiting = [in_sequence(subject, 1, 1, "S"), in_sequence(subject, 1, 1), in_sequence(subject, 2, 2, "S")]
    assert subject.scheduler.waiting == 3
    subject.scheduler.close()
    assert {str(answer.error()) for answer in waiting} == {"model 'm' is unloaded"}
    assert "unloaded" in str(in_sequence(subject, 3, 3, "S").error())
    assert subject.scheduler.waiting == 0


@BOTH
def test_random_sequences_keep_their_order_and_their_numbers(bench: Callable[..., Any], text: str) -> None:
    """Every sequence is a client that sends a few requests ahead."""
    subject = bench(text.replace("size: 4", "size: 3"), instances=2, clock=Clock())
    executed: dict[float, list[float]] = {}
    lock = threading.Lock()
    for runner in subject.runners:
        runner.run = _noting(runner.run, executed, lock)
    _rebind(subject)

    def client(sequence: int) -> None:
        choice = random.Random(sequence)
        count = choice.randint(1, 12)
        pending = []
        for number in range(count):
            flags = ("S" if number == 0 else "") + ("E" if number == count - 1 else "")
            value = sequence * 100 + number
            pending.append((value, in_sequence(subject, value, sequence, flags)))
            if choice.random() < 0.5:
                expected, answers = pending.pop(0)
                assert answers.value() == 2 * expected
        for expected, answers in pending:
            assert answers.value() == 2 * expected

    threads = [threading.Thread(target=client, args=(sequence,)) for sequence in range(1, 25)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for sequence, numbers in executed.items():
        assert numbers == list(range(len(numbers))), sequence
    assert len(executed) == 24


def _noting(run: Any, executed: dict[float, list[float]], lock: threading.Lock) -> Any:
    def noting(inputs: Any, outputs: Any) -> Any:
        with lock:
            for value in inputs["x"].array[:, 0]:
                if value:
                    sequence, number = divmod(int(value), 100)
                    executed.setdefault(sequence, []).append(number)
        return run(inputs, outputs)

    return noting


def _rebind(subject: Any) -> None:
    for instance, runner in zip(subject.scheduler.instances, subject.runners, strict=True):
        instance._run = runner.run
