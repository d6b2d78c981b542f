"""Requests of different beam widths: one that cannot run beside the others does not hold up those behind it."""

from collections.abc import Callable
from datetime import timedelta

from repoagent_llm import Executor, ExecutorConfig, Request, SamplingConfig
from repoagent_llm.engine import scheduler
from repoagent_llm.runner.ort import OrtRunner

LIMIT = timedelta(seconds=60)


def _scheduled(executor: Executor) -> int:
    found = [stats.inflight_batching_stats for stats in executor.get_latest_iteration_stats()]
    return max((item.num_scheduled_requests for item in found if item is not None), default=0)


def test_requests_behind_one_of_another_width_run_together(open_runner: Callable[..., OrtRunner]) -> None:
    runner = open_runner("llama", max_sequences=8)
    with Executor.from_runner(runner, ExecutorConfig(max_beam_width=2)) as executor:
        requests = [Request([5, 9, 17], 40) for _ in range(6)]
        requests.insert(1, Request([5, 9, 17], 40, sampling_config=SamplingConfig(2)))
        ids = executor.enqueue_requests(requests)
        order: list[int] = []
        running = 0
        while len(order) < len(ids):
            order += [response.request_id for response in executor.await_responses(LIMIT)]
            running = max(running, _scheduled(executor))
        assert running == 6
        assert order[-1] == ids[1]


def test_one_of_another_width_runs_although_others_keep_coming(open_runner: Callable[..., OrtRunner]) -> None:
    """Two at a time, so that some are always running; only a limit on overtaking lets the beams begin."""
    runner = open_runner("llama", max_sequences=4)
    with Executor.from_runner(runner, ExecutorConfig(max_beam_width=2, max_batch_size=2)) as executor:
        count = 3 * scheduler._MOST_PASSING
        requests = [Request([5, 9, 17], 4 + number % 3) for number in range(count)]
        requests.insert(2, Request([5, 9, 17], 5, sampling_config=SamplingConfig(2)))
        ids = executor.enqueue_requests(requests)
        order: list[int] = []
        while len(order) < len(ids):
            order += [response.request_id for response in executor.await_responses(LIMIT)]
        assert scheduler._MOST_PASSING <= order.index(ids[2]) <= scheduler._MOST_PASSING + 4
