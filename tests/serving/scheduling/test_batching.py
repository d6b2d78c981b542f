import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from repoagent.errors import CancelledError, InternalError, UnavailableError
from repoagent.serving.instances.backend import BackendInstance
from repoagent.serving.instances.native_instances import NativeInstance
from repoagent.serving.measuring.statistics import ModelStatistics
from repoagent.serving.requests.request import DISCARD, Asked, InferRequest, InferResponse
from repoagent.serving.requests.tensor import Tensor
from repoagent.serving.versions.instance_set import new_scheduler
from tests.serving.version_contexts import version_of

PLAIN = "max_batch_size: 8 dynamic_batching { }"
TIMEOUT = "max_batch_size: 8 dynamic_batching { default_queue_policy { default_timeout_microseconds: 1000 } }"
DELAY = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 1000 }"


def call(bench: Any, request: InferRequest) -> tuple[threading.Thread, list[Any]]:
    """``infer`` on a thread of its own, and where its outcome will be. The request is in the queue on return."""
    outcome: list[Any] = []
    arrived = threading.Event()
    put = bench.scheduler._queue.put

    def tell(*arguments: Any) -> Any:
        arrived.set()
        return put(*arguments)

    def work() -> None:
        try:
            outcome.append(bench.scheduler.infer(request).outputs["y"].array.flat[0])
        except Exception as error:
            outcome.append(error)

    bench.scheduler._queue.put = tell
    thread = threading.Thread(target=work)
    thread.start()
    assert arrived.wait(60)
    with bench.scheduler._lock:
        bench.scheduler._queue.put = put
    return thread, outcome


def test_a_caller_that_finds_the_model_idle_executes_on_its_own_thread(bench: Any) -> None:
    subject = bench(PLAIN)
    before = set(threading.enumerate())
    assert subject.scheduler.infer(subject.request(3)).outputs["y"].array.tolist() == [[6]]
    assert set(threading.enumerate()) <= before


def test_callers_that_wait_share_a_batch_with_submitted_requests(bench: Any) -> None:
    subject = bench(PLAIN)
    subject.plug()
    submitted = subject.submit(1)
    request = subject.request(2)
    thread, outcome = call(subject, request)
    assert subject.scheduler.waiting == 2
    subject.unplug()
    thread.join()
    assert (submitted.value(), outcome) == (2, [4])
    assert subject.batches == [[1, 2]]
    assert request.redirect(DISCARD) is DISCARD


def test_a_timeout_is_noticed_while_the_model_is_busy(bench: Any) -> None:
    subject = bench(TIMEOUT)
    subject.plug()
    late = subject.submit(1)
    subject.advance_ms(1)
    assert isinstance(late.error(), UnavailableError)
    assert subject.statistics.snapshot().failures["REJECTED"] == 1


def test_a_caller_that_waited_too_long_is_told(bench: Any) -> None:
    subject = bench(TIMEOUT)
    subject.plug()
    thread, outcome = call(subject, subject.request(1))
    subject.advance_ms(1)
    thread.join()
    assert [str(error) for error in outcome] == ["Request timeout expired"]


def test_without_a_policy_a_request_waits_no_longer_than_it_wants(bench: Any) -> None:
    subject = bench(PLAIN)
    subject.plug()
    late = subject.submit(1, timeout_us=1000)
    subject.advance_ms(1)
    assert str(late.error()) == "Request timeout expired"


def test_a_caller_in_line_for_a_quick_model_waits_no_longer_than_it_wants(bench: Any) -> None:
    subject = bench(PLAIN)
    subject.run_time.usual_ns = 0
    subject.runners[0].free.clear()
    holder = threading.Thread(target=subject.scheduler.infer, args=(subject.request(2),))
    holder.start()
    subject.wait_for_run([2])
    with pytest.raises(UnavailableError, match="Request timeout expired"):
        subject.scheduler.infer(subject.request(3, timeout_us=1))
    subject.unplug()
    holder.join()
    assert subject.statistics.snapshot().failures["REJECTED"] == 1


def test_a_request_cancelled_while_it_waits_is_not_executed(bench: Any) -> None:
    subject = bench(PLAIN)
    subject.plug()
    request = subject.request(1)
    gone, other = subject.submit_request(request, 1), subject.submit(2)
    request.cancel()
    assert isinstance(gone.error(), CancelledError)  # At once: the model still runs.
    subject.unplug()
    assert other.value() == 4
    assert subject.batches == [[2]]
    assert subject.statistics.snapshot().failures["CANCELED"] == 1


def test_a_request_cancelled_before_it_came_is_refused_at_once(bench: Any) -> None:
    subject = bench(PLAIN)
    request = subject.request(1)
    request.cancel()
    with pytest.raises(CancelledError):
        subject.scheduler.infer(request)
    assert subject.batches == []


def test_a_request_cancelled_during_the_delay_is_not_executed(bench: Any) -> None:
    subject = bench(DELAY)
    request = subject.request(1)
    gone = subject.submit_request(request, 1)
    assert subject.event()[0] == "sleep"
    request.cancel()
    assert isinstance(gone.error(), CancelledError)  # At once: no time has passed.
    subject.advance_ms(1)
    assert subject.batches == []


def test_a_request_cancelled_before_it_is_queued_does_not_wait(bench: Any) -> None:
    subject = bench(PLAIN)
    subject.plug()
    request = subject.request(1)
    request.cancel()
    assert isinstance(subject.submit_request(request, 1).error(), CancelledError)
    subject.unplug()


def test_an_error_of_the_batch_answers_each_of_its_requests(bench: Any) -> None:
    subject = bench(PLAIN)
    subject.plug()
    answers = [subject.submit(value) for value in (1, 2)]
    subject.scheduler.instances[0]._run = lambda *_: 1 / 0
    subject.unplug()
    assert all(isinstance(answer.error(), InternalError) for answer in answers)
    assert subject.statistics.snapshot().failures["BACKEND"] == 2


def test_an_answer_that_is_no_batch_fails_every_request(bench: Any) -> None:
    subject = bench(PLAIN)
    subject.plug()
    answers = [subject.submit(value) for value in (1, 2)]
    subject.scheduler.instances[0]._run = lambda inputs, _: {"y": Tensor.of(np.zeros((5, 1)))}
    subject.unplug()
    assert all("its first dimension must be 2" in str(answer.error()) for answer in answers)


def test_the_statistics_count_executions_inferences_and_batch_sizes(bench: Any) -> None:
    subject = bench(PLAIN)
    plug = subject.plug()
    answers = [subject.submit(1, rows=2), subject.submit(2, rows=3)]
    subject.unplug()
    assert [answer.value() for answer in (plug, *answers)] == [1, 2, 4]
    entry = subject.statistics.to_dict("m", 1)
    assert (entry["inference_count"], entry["execution_count"]) == (6, 2)
    assert entry["inference_stats"]["success"]["count"] == 3
    assert entry["inference_stats"]["queue"]["count"] == 3
    assert [(item["batch_size"], item["compute_infer"]["count"]) for item in entry["batch_stats"]] == [(1, 1), (5, 1)]


def test_a_model_without_a_batch_dimension_gets_its_requests_one_by_one(bench: Any) -> None:
    subject = bench("dynamic_batching { }")
    subject.plug()
    answers = [subject.submit(value) for value in (1, 2)]
    subject.unplug()
    assert [answer.value() for answer in answers] == [2, 4]
    assert subject.batches == [[1], [2]]


def test_several_instances_execute_batches_at_once(bench: Any) -> None:
    subject = bench("max_batch_size: 1 dynamic_batching { }", instances=2)
    subject.plug(1)
    second = subject.submit(2)
    subject.wait_for_run([2])
    subject.unplug()
    assert second.value() == 4


def test_closing_answers_what_waits_and_closes_the_instances(bench: Any) -> None:
    subject = bench(DELAY)
    waiting = subject.submit(1)
    assert subject.event()[0] == "sleep"
    subject.scheduler.close()
    assert str(waiting.error()) == "model 'm' is unloaded"
    assert subject.runners[0].closed
    late = subject.submit(2)
    assert "unloaded" in str(late.error())
    with pytest.raises(UnavailableError):
        subject.scheduler.infer(subject.request(3))


class ListModel(BackendInstance):
    """A native instance that writes down how many requests it is given at once."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.running = threading.Semaphore(0)
        self.free = threading.Event()

    def execute(self, requests: Sequence[InferRequest]) -> None:
        self.batches.append([request.asked.id for request in requests])
        self.running.release()
        assert self.free.wait(60)
        for request in requests:
            request.send(InferResponse("m", "1", request.asked.id), True)

    def close(self) -> None:
        pass


def test_a_native_backend_gets_the_batch_as_a_list_of_requests(config_of: Any, new_sender: Any) -> None:
    model, statistics = ListModel(), ModelStatistics()
    instance = NativeInstance(version_of(statistics, batching=True), model)
    scheduler = new_scheduler(version_of(statistics, config=config_of(PLAIN)), [instance])
    sender = new_sender()
    for name in "abc":
        scheduler.submit(InferRequest(Asked("m", {"x": _row()}, id=name), sender))
        if name == "a":
            assert model.running.acquire(timeout=60)
    model.free.set()
    assert [sender.final().id for _ in range(3)] == ["a", "b", "c"]
    scheduler.close()
    assert model.batches == [["a"], ["b", "c"]]
    assert statistics.snapshot().execution_count == 2


def _row() -> Tensor:
    return Tensor.of(np.zeros((1, 1), np.float32))
