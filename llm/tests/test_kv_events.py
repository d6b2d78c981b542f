"""Whoever follows the KV-cache events knows what the cache retains, and how dearly."""

import random
from datetime import timedelta

import pytest
from repoagent_llm import Executor, ExecutorConfig, KvCacheConfig, KvCacheRetentionConfig, Request
from repoagent_llm.kv_cache import KVCacheEvent, KVCacheRemovedData, KVCacheStoredData, KVCacheUpdatedData

from llm.tests.fake_runner import FakeRunner

LIMIT = timedelta(seconds=120)
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
