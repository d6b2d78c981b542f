"""Statistics count requests, not their sequences, and miss none."""

import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repoagent_llm import (
    DebugConfig,
    DebugTensorsPerIteration,
    DecodingConfig,
    Executor,
    ExecutorConfig,
    ExternalDraftTokensConfig,
    InflightBatchingStats,
    KvCacheConfig,
    KvCacheRetentionConfig,
    LookaheadDecodingConfig,
    ModelType,
    OutputConfig,
    Request,
    RequestStage,
    RunnerOptions,
    SamplingConfig,
)
from repoagent_llm.kv_cache import KVCacheEvent, KVCacheRemovedData, KVCacheStoredData, KVCacheUpdatedData

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


# Whoever follows the KV-cache events knows what the cache retains, and how dearly.

PAGE_BYTES = 32 * 4
Range = KvCacheRetentionConfig.TokenRangeRetentionConfig


def _request(chance: random.Random) -> Request:
    prompt = chance.choice([[7] * 40, [7] * 70, [8] * 33, []]) + [chance.randrange(32) for _ in range(20)]
    retention = KvCacheRetentionConfig([Range(0, None, chance.randint(0, 100))], chance.randint(0, 100))
    return Request(
        prompt[: chance.randint(1, len(prompt))],
        chance.randint(1, 40),
        kv_cache_retention_config=chance.choice([None, None, retention]),
        cache_salt_id=chance.choice([None, 1]),
    )


def _follow(events: list[KVCacheEvent]) -> dict[int, int]:
    """The priority of each block that is retained, as somebody sees it who has nothing but the events."""
    known: dict[int, int] = {}
    for event in events:
        data = event.data
        if isinstance(data, KVCacheStoredData):
            assert data.parent_hash is None or data.parent_hash in known
            for block in data.blocks:
                assert block.block_hash not in known
                known[block.block_hash] = block.priority
        elif isinstance(data, KVCacheRemovedData):
            for block_hash in data.block_hashes:
                del known[block_hash]
        elif isinstance(data, KVCacheUpdatedData) and data.priority is not None:
            assert known[data.block_hash] == data.priority.old_value
            known[data.block_hash] = data.priority.new_value
    return known


@pytest.mark.parametrize("seed", range(8))
def test_events_tell_what_is_retained(seed: int) -> None:
    chance = random.Random(seed)
    cache = KvCacheConfig(
        host_cache_size=PAGE_BYTES * chance.choice([1, 3, 8]),
        event_buffer_max_size=100_000,
        enable_partial_reuse=chance.random() < 0.6,
    )
    with Executor.from_runner(FakeRunner(max_seq_len=200), ExecutorConfig(kv_cache_config=cache)) as executor:
        for _ in range(40):
            executor.await_responses(executor.enqueue_request(_request(chance)), LIMIT)
        manager, pool = executor.get_kv_cache_event_manager(), executor._assembly.engine._cache._pool
    assert manager is not None
    assert pool is not None
    events = manager.get_latest_events()
    assert [event.event_id for event in events] == list(range(len(events)))
    assert _follow(events) == {page.hash: page.priority for page in pool._pages.values()}
    assert len(pool) <= pool._capacity


def test_the_blocks_of_one_prompt_are_one_event() -> None:
    """In the order of its tokens, behind the block that was there before them."""
    cache = KvCacheConfig(event_buffer_max_size=1000)
    with Executor.from_runner(FakeRunner(max_seq_len=400), ExecutorConfig(kv_cache_config=cache)) as executor:
        manager = executor.get_kv_cache_event_manager()
        assert manager is not None
        prompts = [[number % 30 for number in range(length)] for length in (97, 225)]
        stored = []
        for prompt in prompts:
            executor.await_responses(executor.enqueue_request(Request(prompt, 1)), LIMIT)
            stored.append([e.data for e in manager.get_latest_events() if isinstance(e.data, KVCacheStoredData)])
    first, second = stored[0][0], stored[1][0]
    assert [[token.token_id for token in block.tokens] for block in first.blocks] == [
        prompts[0][start : start + 32] for start in (0, 32, 64)
    ]
    assert first.parent_hash is None
    assert second.parent_hash == first.blocks[-1].block_hash
    assert len(second.blocks) == 4


# Debug tensors: what went into each iteration and what came out.

KEPT = timedelta(seconds=30)
Start = Callable[..., Executor]


@pytest.fixture
def start(decoder_folder: Callable[..., Path]) -> Iterator[Start]:
    """``start(debug_config)``: an executor over a small folder."""
    started: list[Executor] = []

    def make(debug: DebugConfig) -> Executor:
        config = ExecutorConfig(debug_config=debug)
        config.runner_options = RunnerOptions(threads=1, spinning=False)
        started.append(Executor(decoder_folder("llama"), ModelType.DECODER_ONLY, config))
        return started[-1]

    yield make
    for executor in started:
        executor.shutdown()


def _run_kept(executor: Executor, request: Request) -> list[DebugTensorsPerIteration]:
    executor.await_responses(executor.enqueue_request(request), KEPT)
    return executor.get_latest_debug_tensors()


def test_a_named_tensor_of_every_iteration(start: Start) -> None:
    """The request of TensorRT-LLM's own test: four tokens, five more, ``sequence_length``."""
    executor = start(DebugConfig(debug_tensor_names=["sequence_length"], debug_tensors_max_iterations=5))
    found = _run_kept(executor, Request([1, 2, 3, 4], 5))
    assert [item.iter for item in found] == [0, 1, 2, 3, 4]
    for number, item in enumerate(found):
        assert set(item.debug_tensors) == {"request_ids", "sequence_length"}
        assert item.debug_tensors["request_ids"].tolist() == [1]
        assert item.debug_tensors["sequence_length"].tolist() == [4 + number]
    assert executor.get_latest_debug_tensors() == []


def test_inputs_outputs_and_tensors_of_the_graph(start: Start) -> None:
    debug = DebugConfig(True, True, ["last_hidden"], 10)
    executor = start(debug)
    request = Request([5, 9, 17], 3, output_config=OutputConfig(return_generation_logits=True))
    (response,) = executor.await_responses(executor.enqueue_request(request), KEPT)
    found = executor.get_latest_debug_tensors()
    tokens = response.result.output_token_ids[0]
    assert [item.debug_tensors["input_ids"].tolist() for item in found] == [[5, 9, 17], [tokens[3]], [tokens[4]]]
    logits = np.concatenate([item.debug_tensors["logits"] for item in found])
    assert np.array_equal(logits, response.result.generation_logits[0])
    assert [item.debug_tensors["last_hidden"].shape for item in found] == [(3, 64), (1, 64), (1, 64)]


def test_old_iterations_make_room_and_the_output_stays_the_same(start: Start) -> None:
    plain = start(DebugConfig())
    watched = start(DebugConfig(True, True, debug_tensors_max_iterations=2))
    texts = []
    for executor in (plain, watched):
        (response,) = executor.await_responses(executor.enqueue_request(Request([5, 9, 17], 6)), KEPT)
        texts.append(response.result.output_token_ids)
    assert texts[0] == texts[1]
    assert plain.get_latest_debug_tensors() == []
    assert [item.iter for item in watched.get_latest_debug_tensors()] == [4, 5]


def test_watched_requests_keep_their_own_tokens_when_rows_change_places(start: Start) -> None:
    """A priority and a request that ends early: the order of requests is not that of their rows."""
    lengths, priorities = (2, 9, 9, 9), (0.5, 0.5, 0.5, 0.9)
    texts = []
    for executor in (start(DebugConfig()), start(DebugConfig(True, True, debug_tensors_max_iterations=20))):
        requests = [
            Request([5 + number, 7], length, priority=priority)
            for number, (length, priority) in enumerate(zip(lengths, priorities, strict=True))
        ]
        answers = executor.await_responses(executor.enqueue_requests(requests), KEPT)
        texts.append([answer[0].result.output_token_ids for answer in answers])
    assert texts[0] == texts[1]


def test_a_tensor_that_a_runner_does_not_have_is_named() -> None:
    config = ExecutorConfig(debug_config=DebugConfig(debug_tensor_names=["nowhere"], debug_tensors_max_iterations=1))
    with pytest.raises(RuntimeError, match=r"'nowhere' is not an output of the runner \(history\)"):
        Executor.from_runner(FakeRunner(), config)
