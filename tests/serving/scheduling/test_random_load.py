"""Many threads, many requests, cancellations and timeouts: every request is answered once, and with its own numbers."""

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from repoagent.errors import CancelledError, UnavailableError
from repoagent.serving.measuring.latencies import RunTime
from repoagent.serving.requests.request import InferRequest
from repoagent.serving.scheduling.steps import Clock

THREADS = 6
REQUESTS = 60

CONFIGS = {
    "direct": "max_batch_size: 8",
    "plain": "max_batch_size: 8 dynamic_batching { }",
    "delay": "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 300 preferred_batch_size: [ 4, 6 ] }",
    "ordered": "max_batch_size: 8 dynamic_batching { preserve_ordering: true max_queue_delay_microseconds: 100 }",
    "priorities": "max_batch_size: 8 dynamic_batching { priority_levels: 3 default_priority_level: 2 "
    "default_queue_policy { default_timeout_microseconds: 2000 allow_timeout_override: true max_queue_size: 20 } "
    "priority_queue_policy { key: 3 value { default_timeout_microseconds: 500 timeout_action: DELAY } } }",
}


class SlowPace(RunTime):
    """That of a model whose executions always take long, so that an assistant is worth its while."""

    def note(self, duration_ns: int, cpu_ns: int = 0, size: int = 0) -> None:
        pass


def traffic(subject: Any, seed: int, asked: list[tuple[InferRequest, float, Any]], failed: list[Exception]) -> None:
    choice = random.Random(seed)
    for number in range(REQUESTS):
        value = float(seed * REQUESTS + number)
        request = subject.request(
            value,
            rows=choice.randint(1, 4),
            width=choice.choice([1, 1, 1, 2]),
            priority=choice.randint(0, 3),
            timeout_us=choice.choice(subject.timeouts_us),
        )
        if choice.random() < 0.1:
            threading.Thread(target=request.cancel).start()
        if choice.random() < 0.3:
            wait_for_answer(subject, request, value, failed)
        else:
            asked.append((request, value, subject.submit_request(request, value)))


def wait_for_answer(subject: Any, request: InferRequest, value: float, failed: list[Exception]) -> None:
    try:
        array = subject.scheduler.infer(request).outputs["y"].array
    except (CancelledError, UnavailableError) as error:
        failed.append(error)
    else:
        assert array.shape == request.inputs["x"].array.shape
        assert (array == 2 * value).all()


@pytest.mark.slow
@pytest.mark.parametrize("text", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("slow", [False, True])
def test_every_request_is_answered_exactly_once_with_its_own_numbers(
    bench: Callable[..., Any], text: str, instances: int, slow: bool
) -> None:
    run_time = SlowPace() if slow else None
    subject = bench(text, instances=instances, dims="-1", clock=Clock(), run_time=run_time)
    subject.timeouts_us = [0] if slow else [0, 0, 1, 1000]
    asked: list[tuple[InferRequest, float, Any]] = []
    failed: list[Exception] = []
    threads = [threading.Thread(target=traffic, args=(subject, seed, asked, failed)) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for request, value, answers in asked:
        response = answers.response()
        assert answers.finals == 1
        if response.error is None:
            assert (response.outputs["y"].array == 2 * value).all()
            assert response.outputs["y"].array.shape == request.inputs["x"].array.shape
        else:
            assert isinstance(response.error, CancelledError | UnavailableError)
            failed.append(response.error)
    subject.close()
    snapshot = subject.statistics.snapshot()
    assert snapshot.success + len(failed) == THREADS * REQUESTS
    assert sum(snapshot.failures.values()) == len(failed)


@pytest.mark.parametrize("run_time", [None, SlowPace()])
def test_answers_keep_the_order_under_load(bench: Callable[..., Any], run_time: RunTime | None) -> None:
    subject = bench(CONFIGS["ordered"], instances=2, dims="-1", clock=Clock(), run_time=run_time)
    choice = random.Random(0)
    for number in range(300):
        subject.submit(float(number), rows=choice.randint(1, 4), width=choice.randint(1, 2))
    assert subject.answered(300) == [float(number) for number in range(300)]
