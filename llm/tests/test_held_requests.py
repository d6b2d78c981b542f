"""Requests whose answers nobody takes for now: they give way to others, go on later, and their texts do not change."""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from repoagent_llm import (
    CapacitySchedulerPolicy,
    Executor,
    ExecutorConfig,
    FinishReason,
    KvCacheConfig,
    Request,
    SamplingConfig,
    SchedulerConfig,
)
from repoagent_llm.runner.paged import PagedRunner
from repoagent_llm.runner.protocol import ModelRunner, Segment, StepResult

from llm.tests.fake_packed import FakePacked
from llm.tests.fake_runner import FakeRunner

LIMIT = timedelta(seconds=60)
SHORT = timedelta(milliseconds=200)
KINDS: dict[str, Callable[[], ModelRunner]] = {
    "slab": lambda: FakeRunner(vocab_size=64, max_seq_len=128, max_sequences=4),
    "pages": lambda: PagedRunner(FakePacked(8, vocab_size=64, max_seq_len=128, max_sequences=4)),
}
SAMPLINGS = [SamplingConfig(), SamplingConfig(top_p=0.9, seed=3), SamplingConfig(num_return_sequences=2, top_p=0.9)]


def _long(sampling: SamplingConfig) -> Request:
    """Of which one takes the whole pool."""
    return Request([5, 6, 7], 90, end_id=-1, streaming=True, sampling_config=sampling)


def _config(policy: CapacitySchedulerPolicy, tokens: int = 224) -> ExecutorConfig:
    return ExecutorConfig(
        max_batch_size=1,
        scheduler_config=SchedulerConfig(policy),
        kv_cache_config=KvCacheConfig(max_tokens=tokens),
    )


def _rest(executor: Executor, request_id: int) -> list[list[int]]:
    """The tokens of each text that still come."""
    texts: list[list[int]] = [[], []]
    while True:
        for response in executor.await_responses(request_id, LIMIT):
            result = response.result
            texts[result.sequence_index] += result.output_token_ids[0]
            if result.is_final:
                return texts


def _first(executor: Executor, request_id: int) -> list[list[int]]:
    """Those of the first responses."""
    texts: list[list[int]] = [[], []]
    for response in executor.await_responses(request_id, LIMIT):
        texts[response.result.sequence_index] += response.result.output_token_ids[0]
    return texts


@pytest.mark.parametrize(
    "policy", [CapacitySchedulerPolicy.MAX_UTILIZATION, CapacitySchedulerPolicy.GUARANTEED_NO_EVICT]
)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "drawn", "two"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_held_request_gives_way_and_goes_on_with_the_same_text(
    kind: str, sampling: SamplingConfig, policy: CapacitySchedulerPolicy
) -> None:
    make = KINDS[kind]
    with Executor.from_runner(make(), _config(policy)) as executor:
        alone = _rest(executor, executor.enqueue_request(_long(sampling)))
    slow = _slowly(make())
    with Executor.from_runner(slow, _config(policy)) as executor:
        long = executor.enqueue_request(_long(sampling))
        begun = _first(executor, long)
        executor.hold_request(long, held=True)
        short = executor.enqueue_request(Request([9], 3, end_id=-1))
        (answer,) = executor.await_responses(short, LIMIT)
        assert answer.result.finish_reasons == [FinishReason.LENGTH]
        seen = executor.get_num_responses_ready(long)
        assert executor.await_responses(executor.enqueue_request(Request([9], 3, end_id=-1)), LIMIT)
        assert executor.get_num_responses_ready(long) == seen < 80  # it stands still
        assert executor._assembly.budget.used == 0
        executor.hold_request(long, held=False)
        rest = _rest(executor, long)
        assert [first + later for first, later in zip(begun, rest, strict=True)] == alone
        assert executor._assembly.budget.used == 0


def _slowly(runner: ModelRunner) -> ModelRunner:
    """So slowly that a request can be interrupted."""
    step = runner.step

    def slow(segments: Sequence[Segment]) -> StepResult:
        time.sleep(0.002)
        return step(segments)

    runner.step = slow  # type: ignore[method-assign]
    return runner


def _set_aside(executor: Executor, **options: Any) -> int:
    """A request that stands aside."""
    long = executor.enqueue_request(Request([5, 6, 7], 90, end_id=-1, streaming=True, **options))
    executor.await_responses(long, LIMIT)
    executor.hold_request(long, held=True)
    executor.await_responses(executor.enqueue_request(Request([9], 3, end_id=-1)), LIMIT)
    assert [task.id for task in executor._assembly.scheduler.aside] == [long]
    return long


@pytest.mark.parametrize(
    ("end", "options"),
    [
        (FinishReason.CANCELLED, {}),
        (FinishReason.TIMED_OUT, {"allotted_time_ms": timedelta(milliseconds=1500)}),
    ],
    ids=["cancelled", "late"],
)
def test_a_request_that_stands_aside_ends_like_any_other(end: FinishReason, options: dict[str, Any]) -> None:
    with Executor.from_runner(_slowly(KINDS["pages"]()), _config(CapacitySchedulerPolicy.MAX_UTILIZATION)) as executor:
        long = _set_aside(executor, **options)
        if end is FinishReason.CANCELLED:
            executor.cancel_request(long)
        while not (last := executor.await_responses(long, LIMIT)[-1].result).is_final:
            pass
        assert last.finish_reasons == [end]
        assert not executor._assembly.scheduler.aside


def test_one_that_is_paused_between_two_of_its_texts_goes_on() -> None:
    """On pages it has no text that grows meanwhile: the look for its shared blocks failed all that ran."""
    steps: list[object] = []

    def between(step: object) -> None:
        steps.append(step)
        if len(steps) == 4:  # After it the first of two texts is whole, and the other has not begun.
            waiting.append(executor.enqueue_request(Request([9], 3, end_id=-1)))
            executor.hold_request(long, held=True)

    runner = PagedRunner(FakePacked(8, vocab_size=64, max_seq_len=128, max_sequences=1, before_run=between))
    waiting: list[int] = []
    request = Request([5, 6, 7], 4, end_id=-1, sampling_config=SamplingConfig(num_return_sequences=2, top_p=0.9))
    with Executor.from_runner(runner, _config(CapacitySchedulerPolicy.MAX_UTILIZATION)) as executor:
        long = executor.enqueue_request(request)
        first = executor.await_responses(long, LIMIT)
        assert [response.result.is_final for response in first] == [False]
        assert not executor.await_responses(waiting[0], LIMIT)[0].has_error()
        (paused,) = executor._assembly.scheduler.aside
        assert not paused.active()
        assert executor._assembly.scheduler._cache.shared_blocks(paused) == 0  # asked where the pool is short
        executor.hold_request(long, held=False)
        (last,) = executor.await_responses(long, LIMIT)
        assert not last.has_error(), last.error_msg
        assert (last.result.sequence_index, len(last.result.output_token_ids[0])) == (1, 7)


def test_an_id_that_has_ended_or_never_was_may_be_held() -> None:
    with Executor.from_runner(KINDS["slab"](), _config(CapacitySchedulerPolicy.MAX_UTILIZATION)) as executor:
        executor.hold_request(7, held=True)
        first = executor.enqueue_request(Request([9], 3, end_id=-1))
        assert executor.await_responses(first, LIMIT)
        executor.hold_request(first, held=True)
        assert executor.await_responses(executor.enqueue_request(Request([9], 3, end_id=-1)), LIMIT)
