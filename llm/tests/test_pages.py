"""The engine over pages: what requests share, what a shortage does, and that every block comes back."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
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
    Result,
    SamplingConfig,
    SchedulerConfig,
)
from repoagent_llm.runner.paged import PackedStep, PagedRunner

from llm.tests.fake_packed import FakePacked
from llm.tests.fake_runner import FakeRunner, hashed_logits

LIMIT = timedelta(seconds=60)
Start = Callable[..., tuple[Executor, PagedRunner]]


@pytest.fixture
def start() -> Iterator[Start]:
    """``start(blocks, config, **options)``: an executor over pages; in the end no sequence holds a block."""
    started: list[tuple[Executor, PagedRunner]] = []

    def make(blocks: int, config: ExecutorConfig | None = None, **options: Any) -> tuple[Executor, PagedRunner]:
        runner = PagedRunner(FakePacked(blocks, **{"max_seq_len": 1024, "max_sequences": 200, **options}))
        started.append((Executor.from_runner(runner, config or ExecutorConfig()), runner))
        return started[-1]

    yield make
    for executor, runner in started:
        executor.shutdown()
        assert runner.pool.busy == 0


def _output() -> OutputConfig:
    return OutputConfig(exclude_input_from_output=True)


def _ask(executor: Executor, requests: list[Request]) -> list[Result]:
    ids = executor.enqueue_requests(requests)
    found = []
    for request_id in ids:
        results: list[Result] = []
        while not (results and results[-1].is_final):
            responses = executor.await_responses(request_id, LIMIT)
            assert not responses[0].has_error(), responses[0].error_msg
            results += [response.result for response in responses]
        found += sorted(results, key=lambda result: result.sequence_index)
    return found


def _texts(results: list[Result]) -> list[list[list[int]]]:
    return [result.output_token_ids for result in results]


def _alone(requests: list[Request], window: int = 0) -> list[list[list[int]]]:
    """What a runner that shares nothing answers, one request after the other."""
    config = ExecutorConfig(max_beam_width=4, kv_cache_config=KvCacheConfig(enable_block_reuse=False))
    logits = hashed_logits(96)
    runner = FakeRunner(
        vocab_size=96, max_seq_len=1024, max_sequences=200, logits=lambda history: logits(history[-window:])
    )
    with Executor.from_runner(runner, config) as executor:
        return _texts([result for request in requests for result in _ask(executor, [request])])


def test_forks_of_one_prompt_hold_its_blocks_once(start: Start) -> None:
    most = 0

    def watch(step: PackedStep) -> None:
        nonlocal most
        most = max(most, runner.pool.busy)

    executor, runner = start(200, before_run=watch)
    prompt = [token % 90 for token in range(600)]
    request = Request(prompt, 5, sampling_config=SamplingConfig(top_k=5, num_return_sequences=128))
    ids = executor.enqueue_requests([request])
    texts: list[Response] = []
    while len(texts) < 128:
        texts += executor.await_responses(ids[0], LIMIT)
    assert not any(response.has_error() for response in texts)
    assert most == 600 // 32 + 128  # 128 copies of the prompt would be 2432


@pytest.mark.parametrize("policy", list(CapacitySchedulerPolicy))
def test_texts_are_right_where_blocks_are_short(policy: CapacitySchedulerPolicy, start: Start) -> None:
    config = ExecutorConfig(max_beam_width=4, scheduler_config=SchedulerConfig(policy), enable_chunked_context=True)
    executor, _ = start(13, config)
    kinds = [None, SamplingConfig(3), SamplingConfig(top_k=4, seed=2), SamplingConfig(4)]
    requests = [
        Request(
            [number % 3, *range(20 + 13 * (number % 5))],
            12 + number,
            sampling_config=kinds[number % 4] or SamplingConfig(),
            output_config=_output(),
        )
        for number in range(24)
    ]
    assert _texts(_ask(executor, requests)) == _alone(requests)


def test_what_is_retained_is_given_up_when_sequences_need_it(start: Start) -> None:
    executor, runner = start(11)
    for first in range(6):
        _ask(executor, [Request([first, *range(1, 80)], 10)])
    assert runner.pool.busy == 0
    assert runner.pool.free < 4  # the others hold what may be used again
    request = Request([7] * 250, 60, output_config=_output())
    assert _texts(_ask(executor, [request])) == _alone([request])


def test_a_prefix_that_runs_is_shared_and_counts_once(start: Start) -> None:
    executor, _ = start(20)
    prompt = [token % 90 for token in range(320)]
    _ask(executor, [Request(prompt, 2)])
    requests = [Request([*prompt, number], 30, output_config=_output()) for number in range(8)]
    assert _texts(_ask(executor, requests)) == _alone(requests)
    stats = executor.get_latest_iteration_stats()
    assert max(item.num_active_requests for item in stats) == 8  # ten blocks together, and one of each


def test_beams_of_several_widths_run_together(start: Start) -> None:
    executor, _ = start(60, ExecutorConfig(max_beam_width=4))
    requests = [
        Request([number, *range(40)], 20, sampling_config=SamplingConfig(width), output_config=_output())
        for number, width in enumerate((2, 1, 4, 3, 1, 2))
    ]
    assert _texts(_ask(executor, requests)) == _alone(requests)
    stats = [item.inflight_batching_stats for item in executor.get_latest_iteration_stats()]
    assert max(item.num_scheduled_requests for item in stats if item is not None) == 6


def test_requests_that_can_never_fit_are_refused_by_what_they_share(start: Start) -> None:
    executor, _ = start(20, ExecutorConfig(max_beam_width=12))
    request = Request(list(range(90)) * 3, 5, sampling_config=SamplingConfig(12))
    (response,) = executor.await_responses(executor.enqueue_request(request), LIMIT)
    assert "needs 20 KV blocks at least; this executor has 19" in (response.error_msg or "")
    request.sampling_config = SamplingConfig(11)
    assert len(_ask(executor, [request])) > 0


@pytest.mark.parametrize("shared", [0, 70])
def test_a_step_that_fails_after_it_has_written_returns_its_blocks(shared: int, start: Start) -> None:
    """Those that it shares with others are as before."""

    def fail(step: PackedStep) -> None:
        if (step.tokens == 66).sum() > 20:
            raise RuntimeError("the model fails")

    executor, runner = start(12, before_run=fail)
    prefix = list(range(shared))
    good = Request([*prefix, 5, 5], 5, output_config=_output())
    if shared:
        assert _texts(_ask(executor, [good])) == _alone([good])
    free = runner.pool.free
    ids = executor.enqueue_requests([Request([*prefix, *[66] * 100], 5)])
    ((response,),) = executor.await_responses(ids, LIMIT)
    assert response.has_error()
    assert runner.pool.free == free
    requests = [good, Request([5] * 300, 40, output_config=_output())]
    assert _texts(_ask(executor, requests)) == _alone(requests)


@pytest.mark.parametrize("blocks", [5, 6, 7, 8])
def test_forks_that_write_into_the_last_free_blocks_are_right(blocks: int, start: Start) -> None:
    """Each needs a copy of the half block at the end of the prompt; with few, not all of them run at once."""
    executor, _ = start(blocks)
    sampling = SamplingConfig(top_k=5, num_return_sequences=4, seed=3)
    requests = [
        Request([number, *range(40)], 20, sampling_config=sampling, output_config=_output()) for number in range(3)
    ]
    assert _texts(_ask(executor, requests)) == _alone(requests)


def test_forks_go_on_when_the_request_that_computed_their_prompt_is_cancelled(start: Start) -> None:
    together, ids = threading.Event(), list[int]()

    def cancel(step: PackedStep) -> None:
        if len(step.tokens) == 1:
            assert together.wait(60)
        if len(step.past) == 5:  # All of them run.
            executor.cancel_request(ids[0])

    executor, _ = start(100, before_run=cancel)
    prompt = [token % 90 for token in range(300)]
    sampling = SamplingConfig(top_k=5, num_return_sequences=4, seed=3)
    forks = Request(prompt, 60, sampling_config=sampling, output_config=_output())
    ids += executor.enqueue_requests([Request(prompt, 600, streaming=True)])
    assert executor.await_responses(ids[0], LIMIT)
    ids += executor.enqueue_requests([forks])
    together.set()
    while not (last := executor.await_responses(ids[0], LIMIT)[-1].result).is_final:
        pass
    assert last.finish_reasons == [FinishReason.CANCELLED]
    found: list[Result] = []
    while len(found) < 4:
        found += [response.result for response in executor.await_responses(ids[1], LIMIT)]
    found.sort(key=lambda result: result.sequence_index)
    assert _texts(found) == _alone([forks])


@pytest.mark.parametrize("policy", list(CapacitySchedulerPolicy))
def test_a_model_of_windows_runs_long_texts_in_a_small_pool(policy: CapacitySchedulerPolicy, start: Start) -> None:
    config = ExecutorConfig(
        max_beam_width=3, scheduler_config=SchedulerConfig(policy), enable_chunked_context=True, max_num_tokens=60
    )
    executor, _ = start(20, config, window=40)  # 19 blocks hold 608 tokens
    kinds = [None, SamplingConfig(3), SamplingConfig(top_k=4, seed=2, num_return_sequences=2)]
    requests = [
        Request(
            [number, *(token % 90 for token in range(100 + 150 * (number % 3)))],
            300,
            sampling_config=kinds[number % 3] or SamplingConfig(),
            output_config=_output(),
        )
        for number in range(6)
    ]
    assert _texts(_ask(executor, requests)) == _alone(requests, 40)


def test_a_disk_that_fails_while_requests_run_changes_no_text(start: Start, tmp_path: Path) -> None:
    config = ExecutorConfig()
    config.block_folder = tmp_path
    requests = [Request([first, *range(90)] * 3, 5, output_config=_output()) for first in range(4)]
    executor, _ = start(40, config)
    _ask(executor, requests)
    executor.shutdown()
    files = sorted(tmp_path.glob("*/*.kv"))
    assert len(files) == 4 * (273 // 32)
    for number, file in enumerate(files):  # Cut, changed, gone, or no file any more.
        data = file.read_bytes()
        if number % 4 > 1:
            file.unlink()
        if number % 4 < 2:
            file.write_bytes(data[:100] if number % 2 else data[::-1])
        elif number % 4 == 2:
            file.mkdir()
    executor, _ = start(12, config)
    assert _texts(_ask(executor, requests[:2])) == _alone(requests[:2])
    files[0].parent.rename(tmp_path / "gone")
    files[0].parent.write_text("no folder")
    assert _texts(_ask(executor, requests)) == _alone(requests)


def test_blocks_come_back_from_files_after_a_restart(start: Start, tmp_path: Path) -> None:
    computed: list[int] = []

    def watch(step: PackedStep) -> None:
        computed.append(len(step.tokens))

    config = ExecutorConfig()
    config.block_folder = tmp_path
    prompt = [token % 90 for token in range(300)]
    requests = [Request([*prompt, number], 5, output_config=_output()) for number in range(3)]
    expected = _alone(requests)
    for number, most in enumerate((301, 301 - 9 * 32)):
        executor, _ = start(40, config, before_run=watch)
        del computed[:]
        assert _texts(_ask(executor, requests[:1])) == expected[:1]
        assert computed[0] == most
        if number:
            vars(requests[1])["return_cached_tokens"] = True
            (result,) = _ask(executor, requests[1:2])
            assert vars(result)["cached_tokens"] == 300
        executor.shutdown()
        assert len(list(tmp_path.glob("*/*.kv"))) == 9
    # In a pool that is full of other texts they come back in the place of these.
    executor, _ = start(12, config, before_run=watch)
    _ask(executor, [Request([7, *range(90)] * 3, 5)])
    del computed[:]
    assert _texts(_ask(executor, requests[2:])) == expected[2:]
    assert computed[0] < 100
    del computed[:]
    _ask(executor, [Request(prompt, 5, cache_salt_id=4)])  # those of a salt are not kept
    assert computed[0] == 300
