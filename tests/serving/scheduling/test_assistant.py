"""The next batch is made, and the last one answered, while the model runs; all that is promised otherwise holds."""

import threading
import time
from typing import Any

import pytest

from repoagent.errors import CancelledError, InternalError, UnavailableError
from repoagent.serving.scheduling.steps import Clock

PATIENCE = 120.0
PAIRS = "max_batch_size: 2 dynamic_batching { }"


def wait_until_ready(subject: Any, requests: int) -> None:
    """Until that many requests are in batches that wait for an instance."""
    scheduler = subject.scheduler
    assistant = getattr(scheduler, "_inner", scheduler)._assistant
    with assistant._made:
        assert assistant._made.wait_for(lambda: assistant.holding == requests, PATIENCE)


def plugged(bench: Any, *values: float, text: str = PAIRS) -> tuple[Any, list[Any]]:
    """A bench whose instance is busy with 0.5 while two batches' worth of ``values`` wait, the first of them ready."""
    subject = bench(text)
    subject.plug()
    answers = [subject.submit(value) for value in values]
    wait_until_ready(subject, 2)
    return subject, answers


def test_a_full_batch_is_ready_when_the_model_is(bench: Any) -> None:
    subject, answers = plugged(bench, 1, 2, 3)
    assert subject.scheduler.waiting == 3
    answers.append(subject.submit(4))
    subject.unplug()
    assert [answer.value() for answer in answers] == [2, 4, 6, 8]
    assert subject.batches == [[1, 2], [3, 4]]
    assert subject.scheduler.waiting == 0


def test_a_batch_that_is_not_full_is_left_open(bench: Any) -> None:
    subject = bench("max_batch_size: 3 dynamic_batching { }")
    subject.plug()
    answers = [subject.submit(value) for value in (1, 2)]
    assert subject.scheduler._assistant._thread is None
    subject.unplug()
    assert [answer.value() for answer in answers] == [2, 4]
    assert subject.batches == [[1, 2]]


def test_the_last_batch_is_answered_while_the_next_one_runs(bench: Any) -> None:
    subject, answers = plugged(bench, 1, 2)
    run = subject.scheduler.instances[0]._run
    release = threading.Event()

    def slow(inputs: Any, outputs: Any) -> Any:
        assert release.wait(PATIENCE)
        return run(inputs, outputs)

    subject.scheduler.instances[0]._run = slow
    subject.unplug()
    assert subject.answered(1) == [0.5]
    assert not any(answer.arrived for answer in answers)
    release.set()
    assert [answer.value() for answer in answers] == [2, 4]


def test_answers_leave_in_order_if_that_is_asked_for(bench: Any) -> None:
    text = "max_batch_size: 2 dynamic_batching { preserve_ordering: true }"
    subject, _ = plugged(bench, 1, 2, 3, text=text)
    subject.unplug()
    assert subject.answered(4) == [0.5, 1, 2, 3]


def test_a_preferred_size_is_full_enough(bench: Any) -> None:
    text = "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 1000 }"
    subject = bench(text)
    for runner in subject.runners:
        runner.free.clear()
    answers = [subject.submit(value) for value in (0, 0)]
    subject.wait_for_run([0, 0])
    subject.batches.clear()
    answers += [subject.submit(value) for value in (1, 2)]
    wait_until_ready(subject, 2)
    for runner in subject.runners:
        runner.free.set()
    assert [answer.value() for answer in answers] == [0, 0, 2, 4]
    assert subject.batches == [[1, 2]]


def test_a_request_cancelled_in_a_batch_that_is_ready_is_not_executed(bench: Any) -> None:
    subject = bench(PAIRS)
    subject.plug()
    request = subject.request(1)
    gone, other = subject.submit_request(request, 1), subject.submit(2)
    wait_until_ready(subject, 2)
    request.cancel()
    subject.unplug()
    assert isinstance(gone.error(), CancelledError)
    assert other.value() == 4
    assert subject.batches == [[2]]
    assert subject.statistics.snapshot().failures["CANCELED"] == 1


def test_a_batch_that_is_ready_may_be_cancelled_as_a_whole(bench: Any) -> None:
    subject = bench(PAIRS)
    plug = subject.plug()
    requests = [subject.request(value) for value in (1, 2)]
    answers = [subject.submit_request(request, None) for request in requests]
    wait_until_ready(subject, 2)
    for request in requests:
        request.cancel()
    subject.unplug()
    assert all(isinstance(answer.error(), CancelledError) for answer in answers)
    assert plug.value() == 1
    assert subject.submit(3).value() == 6
    assert subject.batches == [[3]]


def test_a_batch_that_cannot_be_made_fails_alone(bench: Any) -> None:
    subject = bench(PAIRS)
    subject.plug()
    joiner = subject.scheduler.instances[0]._joiner
    join = joiner.join

    def broken(requests: Any) -> Any:
        joiner.join = join
        raise MemoryError("too large")

    joiner.join = broken
    answers = [subject.submit(value) for value in (1, 2, 3, 4)]
    wait_until_ready(subject, 2)
    subject.unplug()
    assert all("MemoryError: too large" in str(answer.error()) for answer in answers[:2])
    assert [answer.value() for answer in answers[2:]] == [6, 8]
    assert subject.statistics.snapshot().failures["BACKEND"] == 2


def test_an_execution_that_fails_fails_alone(bench: Any) -> None:
    subject, answers = plugged(bench, 1, 2, 3, 4)
    instance = subject.scheduler.instances[0]
    run = instance._run

    def broken(inputs: Any, outputs: Any) -> Any:
        instance._run = run
        raise ZeroDivisionError

    instance._run = broken
    subject.unplug()
    assert all(isinstance(answer.error(), InternalError) for answer in answers[:2])
    assert [answer.value() for answer in answers[2:]] == [6, 8]


def test_closing_turns_away_a_batch_that_is_ready(bench: Any) -> None:
    subject, answers = plugged(bench, 1, 2, 3)
    closing = threading.Thread(target=subject.scheduler.close)
    closing.start()
    assert all(str(answer.error()) == "model 'm' is unloaded" for answer in answers[:2])
    subject.unplug()
    closing.join(PATIENCE)
    assert isinstance(answers[2].error(), UnavailableError)
    assert subject.answered(4)[-1] == 3
    assert subject.batches == []
    assert subject.runners[0].closed
    assert not subject.scheduler._assistant._thread.is_alive()


def test_closing_turns_away_what_is_being_made(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repoagent.serving.scheduling.assistant._PATIENCE_SECONDS", 0.01)
    subject = bench(PAIRS)
    subject.plug()
    instance, making, stopped = subject.scheduler.instances[0], threading.Event(), threading.Event()
    prepare = instance.prepare

    def slow(requests: Any) -> Any:
        making.set()
        assert stopped.wait(PATIENCE)
        return prepare(requests)

    instance.prepare = slow
    answers = [subject.submit(value) for value in (1, 2)]
    assert making.wait(PATIENCE)
    subject.unplug()
    subject.scheduler.close()
    assert not any(answer.arrived for answer in answers)
    stopped.set()
    assert all(str(answer.error()) == "model 'm' is unloaded" for answer in answers)
    assert subject.batches == []


def test_a_model_that_is_done_waits_for_the_batch_that_is_being_made(bench: Any) -> None:
    subject = bench(PAIRS)
    plug = subject.plug()
    instance, making, go_on = subject.scheduler.instances[0], threading.Event(), threading.Event()
    prepare = instance.prepare

    def slow(requests: Any) -> Any:
        instance.prepare = prepare
        making.set()
        assert go_on.wait(PATIENCE)
        return prepare(requests)

    instance.prepare = slow
    answers = [subject.submit(value) for value in (1, 2)]
    assert making.wait(PATIENCE)
    answers += [subject.submit(value) for value in (3, 4)]
    subject.unplug()
    go_on.set()
    assert [answer.value() for answer in (plug, *answers)] == [1, 2, 4, 6, 8]
    assert subject.batches == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("max_batch_size: 2 dynamic_batching { default_queue_policy { default_timeout_microseconds: 1000 } }", {}),
        (PAIRS, {"timeout_us": 1000}),
    ],
)
def test_requests_whose_time_may_be_over_first_are_not_taken_early(
    bench: Any, text: str, fields: dict[str, int]
) -> None:
    subject = bench(text)
    subject.plug()
    answers = [subject.submit(value, **fields) for value in (1, 2)]
    subject.advance_ms(1)
    assert all(str(answer.error()) == "Request timeout expired" for answer in answers)


def test_urgent_requests_still_overtake_a_full_batch(bench: Any) -> None:
    subject = bench("max_batch_size: 2 dynamic_batching { priority_levels: 2 default_priority_level: 2 }")
    subject.plug()
    answers = [subject.submit(value) for value in (1, 2)]
    answers.append(subject.submit(3, priority=1))
    subject.unplug()
    assert [answer.value() for answer in answers] == [2, 4, 6]
    assert subject.batches == [[3, 1], [2]]


def test_no_more_wait_than_the_queue_has_room_for(bench: Any) -> None:
    subject = bench("max_batch_size: 2 dynamic_batching { default_queue_policy { max_queue_size: 2 } }")
    subject.plug()
    answers = [subject.submit(value) for value in (1, 2, 3)]
    assert "Exceeds maximum queue size" in str(answers.pop().error())
    subject.unplug()
    assert [answer.value() for answer in answers] == [2, 4]


def test_a_quick_model_does_it_all_on_one_thread(bench: Any) -> None:
    subject = bench(PAIRS)
    subject.run_time.usual_ns = 0
    for runner in subject.runners:
        runner.free.clear()
    answers = [subject.submit(0)]
    subject.wait_for_run([0])
    answers += [subject.submit(value) for value in (1, 2)]
    subject.unplug()
    assert [answer.value() for answer in answers] == [0, 2, 4]
    assert subject.scheduler._assistant._thread is None


def test_of_several_instances_the_one_that_is_free_first_goes_on(bench: Any) -> None:
    subject = bench("max_batch_size: 1 dynamic_batching { }", instances=2)
    assert subject.scheduler._assistant is None  # Nothing to join.
    subject = bench(PAIRS, instances=2)
    for runner in subject.runners:
        runner.free.clear()
    answers = []
    for value in (1, 2):
        answers.append(subject.submit(value, rows=2))
        subject.wait_for_run([value, value])
    answers += [subject.submit(value) for value in (3, 4, 5, 6)]
    wait_until_ready(subject, 4)
    subject.runners[0].free.set()
    subject.wait_for_run([3, 4])
    subject.wait_for_run([5, 6])
    subject.unplug()
    assert [answer.value() for answer in answers] == [2, 4, 6, 8, 10, 12]


def test_a_batch_is_not_kept_for_a_busy_instance_while_a_worker_has_an_idle_one(bench: Any) -> None:
    subject = bench(PAIRS, instances=2)
    for runner in subject.runners:
        runner.free.clear()
    asleep = threading.Event()
    changed = subject.scheduler._assistant._changed
    wait = changed.wait

    def sleep() -> None:
        asleep.set()
        wait()

    changed.wait = sleep
    answers = [subject.submit(1, rows=2)]
    subject.wait_for_run([1, 1])
    pool = subject.scheduler._pool
    instance = pool.take()  # as a worker that has come too late for the first request
    answers.append(subject.submit(2, rows=2))
    assert asleep.wait(60)  # it has looked at the queue, and made all that it was going to
    assert subject.scheduler._assistant.holding == 0
    pool.give(instance)
    subject.wait_for_run([2, 2])
    subject.unplug()
    assert [answer.value() for answer in answers] == [2, 4]


def test_the_parts_of_a_requests_time_add_up(bench: Any) -> None:
    subject = bench(PAIRS, clock=Clock())
    before = time.monotonic_ns()
    subject.plug()
    requests = [subject.request(value) for value in (1, 2)]
    answers = [subject.submit_request(request, None) for request in requests]
    wait_until_ready(subject, 2)
    released = time.monotonic_ns()
    subject.unplug()
    assert [answer.value() for answer in answers] == [2, 4]
    stats = subject.statistics.to_dict("m", 1)["inference_stats"]
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    assert sum(stats[part]["ns"] for part in parts) == stats["success"]["ns"]
    assert all(stats[part]["ns"] >= 0 for part in parts)
    for request in requests:
        assert before < request.arrival_ns < request.times.start_ns
        assert released <= request.times.input_end_ns <= request.times.output_start_ns <= request.times.end_ns
