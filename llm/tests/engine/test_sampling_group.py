"""The sequences of one request run as they fit and give way to requests that wait; their texts stay the same."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from typing import Any

import pytest
from repoagent_llm import (
    CapacitySchedulerPolicy,
    Executor,
    ExecutorConfig,
    FinishReason,
    KvCacheConfig,
    OutputConfig,
    Request,
    Response,
    SamplingConfig,
    SchedulerConfig,
)
from repoagent_llm.runner.paged import PagedRunner
from repoagent_llm.runner.protocol import ModelRunner, Segment

from llm.tests.fake_packed import FakePacked
from llm.tests.fake_runner import FakeRunner, hashed_logits

LIMIT = timedelta(seconds=60)
Texts = list[tuple[list[int], Any]]


def _slab(rows: int, *, watch: Callable[[int], None] = lambda _: None) -> ModelRunner:
    def before(segments: Sequence[Segment]) -> None:
        watch(len(segments))

    return FakeRunner(vocab_size=96, max_seq_len=1024, max_sequences=rows, before_step=before)


def _pages(rows: int, *, blocks: int = 200, window: int = 0) -> ModelRunner:
    return PagedRunner(FakePacked(blocks, max_seq_len=1024, max_sequences=rows, window=window))


def _config(
    policy: CapacitySchedulerPolicy = CapacitySchedulerPolicy.GUARANTEED_NO_EVICT, **more: Any
) -> ExecutorConfig:
    return ExecutorConfig(scheduler_config=SchedulerConfig(policy), enable_chunked_context=True, **more)


def _request(count: int, *, prompt: int = 70, length: int = 40, **more: Any) -> Request:
    tokens = [(3 * token + count) % 90 for token in range(prompt)]
    sampling = SamplingConfig(top_k=5, seed=count, num_return_sequences=count)
    output = OutputConfig(exclude_input_from_output=True, return_log_probs=True)
    return Request(tokens, length, sampling_config=sampling, output_config=output, **more)


def _texts(executor: Executor, ids: Sequence[int]) -> list[Texts]:
    """Of each request, in the order of its sequences."""
    return [_text(list(_until_last(executor, request_id))) for request_id in ids]


def _until_last(executor: Executor, request_id: int) -> list[Response]:
    found: list[Response] = []
    while not (found and found[-1].is_last):
        found += executor.await_responses(request_id, LIMIT)
        assert not found[-1].has_error(), found[-1].error_msg
    return found


def _text(responses: list[Response]) -> Texts:
    results: dict[int, tuple[list[int], Any]] = {}
    for response in responses:
        tokens, _ = results.get(response.result.sequence_index, ([], None))
        values = response.result.log_probs
        results[response.result.sequence_index] = tokens + response.result.output_token_ids[0], values and values[0]
    return [results[index] for index in sorted(results)]


def _alone(*requests: Request, window: int = 0) -> list[Texts]:
    """What they are answered one by one where all their sequences fit, and nothing is shared."""
    logits = hashed_logits(96)
    runner = FakeRunner(
        vocab_size=96, max_seq_len=1024, max_sequences=200, logits=lambda history: logits(history[-window:])
    )
    config = ExecutorConfig(kv_cache_config=KvCacheConfig(enable_block_reuse=False))
    with Executor.from_runner(runner, config) as executor:
        return [_texts(executor, executor.enqueue_requests([request]))[0] for request in requests]


@pytest.mark.parametrize("runner", [lambda: _slab(4), lambda: _pages(4), lambda: _pages(200)])
def test_a_short_request_does_not_wait_for_the_texts_of_another(runner: Callable[[], ModelRunner]) -> None:
    """All four rows, or 200 blocks, are taken by those of the first."""
    wide, short = _request(150, length=300), _request(1, length=3)
    with Executor.from_runner(runner(), _config()) as executor:
        (first,) = executor.enqueue_requests([wide])
        while not executor.get_latest_iteration_stats():
            pass
        for _ in range(3):
            (second,) = executor.enqueue_requests([short])
            assert _texts(executor, [second]) == _alone(short)
        assert not any(response.is_last for response in executor.await_responses(first, timedelta(0)))
        executor.cancel_request(first)


def _six(streaming: bool) -> list[Request]:
    """For different numbers of texts."""
    lengths = (10 + 20 * (number % 3) for number in range(6))
    counts = (9, 1, 2, 20, 1, 4)
    return [_request(count, length=length, streaming=streaming) for count, length in zip(counts, lengths, strict=True)]


@cache
def _six_alone(streaming: bool, window: int) -> list[Texts]:
    return _alone(*_six(streaming), window=window)


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("policy", list(CapacitySchedulerPolicy))
@pytest.mark.parametrize(
    ("runner", "window"),
    [
        (lambda: _slab(3), 0),
        (lambda: _pages(5), 0),
        (lambda: _pages(200, blocks=12), 0),
        (lambda: _pages(200, blocks=30, window=40), 40),
    ],
)
def test_texts_do_not_depend_on_how_many_run(
    runner: Callable[[], ModelRunner], window: int, policy: CapacitySchedulerPolicy, streaming: bool, reuse: bool
) -> None:
    config = _config(policy, kv_cache_config=KvCacheConfig(enable_block_reuse=reuse))
    built = runner()
    with Executor.from_runner(built, config) as executor:
        found = _texts(executor, executor.enqueue_requests(_six(streaming)))
        for texts, expected in zip(found, _six_alone(streaming, window), strict=True):
            assert [tokens for tokens, _ in texts] == [tokens for tokens, _ in expected]
            assert [values for _, values in texts] == [values for _, values in expected]
    if isinstance(built, PagedRunner):
        assert built.pool.busy == 0


def test_a_request_of_less_priority_gets_no_row_before_more_texts_of_another() -> None:
    with Executor.from_runner(_slab(4), _config()) as executor:
        ids = executor.enqueue_requests([_request(8, length=60, priority=0.9), _request(1, length=3, priority=0.1)])
        order: list[int] = []
        while len(order) < 2:
            order += [response.request_id for response in executor.await_responses(LIMIT) if response.is_last]
        assert order == ids


def test_two_requests_for_several_texts_share_the_rows() -> None:
    """The second gets rows of the first as texts of that end, not when all have."""
    with Executor.from_runner(_slab(6), _config()) as executor:
        first, second = executor.enqueue_requests([_request(60, length=9), _request(12, length=9)])
        order: list[int] = []
        while second not in order:
            order += [response.request_id for response in executor.await_responses(LIMIT) if response.is_last]
        assert first not in order


def test_a_request_is_cancelled_between_two_of_its_texts() -> None:
    """None of those that began goes on, and some have not begun."""
    steps: list[int] = []

    def watch(segments: int) -> None:
        steps.append(segments)
        if len(steps) == 6:  # the last of the second text
            executor.cancel_request(1)

    with Executor.from_runner(_slab(1, watch=watch), _config()) as executor:
        (request_id,) = executor.enqueue_requests([_request(5, length=3)])
        reasons = [response.result.finish_reasons[0] for response in _until_last(executor, request_id)]
        assert reasons == [FinishReason.LENGTH, FinishReason.LENGTH, FinishReason.CANCELLED]


def test_texts_that_cannot_share_a_prompt_end_their_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that begin later take the prompt from one that runs."""
    runner = _pages(3)

    def fail(*_: object) -> None:
        raise RuntimeError("a fault made on purpose")

    monkeypatch.setattr(runner, "import_kv", fail)
    config = _config(kv_cache_config=KvCacheConfig(enable_block_reuse=False))
    with Executor.from_runner(runner, config) as executor:
        short = _request(1, length=30)
        first, second = executor.enqueue_requests([_request(9, length=9), short])
        responses: list[Response] = []
        while not (responses and responses[-1].is_last):
            responses += executor.await_responses(first, LIMIT)
        assert responses[-1].error_msg == "the runner failed: a fault made on purpose"
        assert _texts(executor, [second]) == _alone(short)
    assert isinstance(runner, PagedRunner)
    assert runner.pool.busy == 0
