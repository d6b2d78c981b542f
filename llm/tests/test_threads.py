"""Many threads at one executor: each id is answered once, to whoever waits for it, however they wait."""

import random
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
from repoagent_llm import (
    CapacitySchedulerPolicy,
    Executor,
    ExecutorConfig,
    KvCacheConfig,
    Request,
    SamplingConfig,
    SchedulerConfig,
)
from repoagent_llm.types.executor_errors import ExecutorStoppedError

from llm.tests.fake_runner import FakeRunner

pytestmark = pytest.mark.slow

LIMIT = timedelta(seconds=120)
CONFIG = ExecutorConfig(
    max_beam_width=2,
    request_stats_max_iterations=10,
    kv_cache_config=KvCacheConfig(max_tokens=640, event_buffer_max_size=50),
    scheduler_config=SchedulerConfig(CapacitySchedulerPolicy.MAX_UTILIZATION),
)


@pytest.fixture(autouse=True)
def _threads_that_alternate_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def _request(chance: random.Random) -> Request:
    return Request(
        [chance.randrange(32) for _ in range(chance.randint(1, 60))],
        chance.randint(1, 12),
        streaming=chance.random() < 0.5,
        sampling_config=SamplingConfig(chance.choice([1, 1, 2])),
        allotted_time_ms=chance.choice([None, None, timedelta(milliseconds=1)]),
    )


def _serve(executor: Executor, chance: random.Random, rounds: int, ended: dict[int, int]) -> None:
    """Send a few requests at a time, cancel some, wait for all; count the ends of each."""
    for _ in range(rounds):
        ids = executor.enqueue_requests([_request(chance) for _ in range(chance.randint(1, 4))])
        ended.update(dict.fromkeys(ids, 0))
        waiting = set(ids)
        if chance.random() < 0.3:
            executor.cancel_request(chance.choice(ids))
        while waiting:
            one = chance.random() < 0.5
            asked = list(waiting)[:1] if one else list(waiting)
            taken = [executor.await_responses(asked[0], LIMIT)] if one else executor.await_responses(asked, LIMIT)
            for request_id, responses in zip(asked, taken, strict=True):
                for response in responses:
                    assert not response.has_error(), response.error_msg
                    if response.result.is_final:
                        ended[request_id] += 1
                        waiting.remove(request_id)
        executor.get_latest_iteration_stats()
        executor.get_num_responses_ready()


@pytest.mark.parametrize("stopped", [False, True])
def test_threads_do_not_get_in_each_others_way(stopped: bool) -> None:
    runner, counts, faults = FakeRunner(max_sequences=6), [dict[int, int]() for _ in range(6)], list[BaseException]()
    executor = Executor.from_runner(runner, CONFIG)
    under_way = threading.Event()

    def work(number: int) -> None:
        try:
            _serve(executor, random.Random(number), 3, counts[number])
            under_way.set()
            _serve(executor, random.Random(-number), 22, counts[number])
        except ExecutorStoppedError as error:
            faults.extend([] if stopped else [error])
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(counts))]
    for thread in threads:
        thread.start()
    if stopped:
        assert under_way.wait(120)
        executor.shutdown()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    executor.shutdown()
    assert faults == []
    assert runner.open_sequences == 0
    if not stopped:
        assert {count for each in counts for count in each.values()} == {1}
