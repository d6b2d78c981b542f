"""Statistics count requests, not their sequences, and miss none."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from repoagent_llm import (
    DecodingConfig,
    Executor,
    ExecutorConfig,
    ExternalDraftTokensConfig,
    InflightBatchingStats,
    LookaheadDecodingConfig,
    Request,
    RequestStage,
    SamplingConfig,
)

from llm.tests.fake_runner import FakeRunner, table_logits
from tests.descriptors import no_descriptors

LIMIT = timedelta(seconds=120)
LATE = timedelta(0)


@pytest.fixture
def executor() -> Iterator[Executor]:
    runner = FakeRunner(logits=table_logits({1: 2, 2: 3, 3: 1}, 32))
    with Executor.from_runner(runner, ExecutorConfig(max_beam_width=4, request_stats_max_iterations=100)) as executor:
        yield executor


def _run(executor: Executor, *requests: Request) -> None:
    ids = executor.enqueue_requests(requests)
    waiting = set(ids)
    while waiting:
        for response in executor.await_responses(LIMIT):
            if response.has_error() or response.result.is_final:
                waiting.remove(response.request_id)


def _batching(executor: Executor) -> list[InflightBatchingStats]:
    return [
        stats.inflight_batching_stats
        for stats in executor.get_latest_iteration_stats()
        if stats.inflight_batching_stats
    ]


@pytest.mark.parametrize("arguments", [{"sampling_config": SamplingConfig(4)}, {"num_return_sequences": 4}])
def test_beams_and_several_sequences_are_one_request(executor: Executor, arguments: dict[str, Any]) -> None:
    _run(executor, Request([1, 2, 3], 3, **arguments))
    counted = [
        (item.num_scheduled_requests, item.num_context_requests, item.num_gen_requests) for item in _batching(executor)
    ]
    assert counted == [(1, 1, 0), (1, 0, 1), (1, 0, 1)]


def test_drafts_that_are_right_count_as_decoded() -> None:
    runner = FakeRunner(logits=table_logits({1: 2, 2: 3, 3: 1}, 32))
    decoding = DecodingConfig(lookahead_decoding_config=LookaheadDecodingConfig(4, 3, 4))
    with Executor.from_runner(runner, ExecutorConfig(decoding_config=decoding)) as executor:
        _run(executor, Request([1, 2, 3, 1, 2, 3], 7))
        decoded = [item.avg_num_decoded_tokens_per_iter for item in _batching(executor)]
        # The prompt gives one token, then each step verifies two drafts that are right.
        assert decoded == [0.0, 3.0, 3.0]
        _run(executor, Request([7], 3, external_draft_tokens_config=ExternalDraftTokensConfig([0, 0])))
        assert [item.avg_num_decoded_tokens_per_iter for item in _batching(executor)] == [0.0]


def test_requests_that_end_before_they_start_are_counted_as_completed_and_not_as_active(executor: Executor) -> None:
    _run(executor, *(Request([1], 3, allotted_time_ms=LATE) for _ in range(3)))
    _run(executor, Request([1], 3))
    iterations = executor.get_latest_iteration_stats()
    assert sum(stats.num_completed_requests for stats in iterations) == 4
    assert sum(stats.num_new_active_requests for stats in iterations) == 1


def test_a_request_that_has_ended_has_read_its_prompt(executor: Executor) -> None:
    _run(executor, Request([1, 2, 3], 2))
    last = executor.get_latest_request_stats()[-1].request_stats[0]
    assert (last.stage, last.context_prefill_position) == (RequestStage.GENERATION_COMPLETE, 3)


def test_the_memory_is_that_of_now(executor: Executor) -> None:
    """Not the most that there ever was, in which that of the parent process would count, too."""

    def used() -> int:
        _run(executor, Request([1], 1))
        return executor.get_latest_iteration_stats()[-1].cpu_mem_usage

    much = np.ones(1 << 25)
    with_it = used()
    del much
    assert with_it - used() > 128 << 20


def test_statistics_need_no_descriptor(executor: Executor) -> None:
    _run(executor, Request([1], 1))
    with no_descriptors():
        assert executor.get_latest_iteration_stats()[-1].cpu_mem_usage > 1 << 20
