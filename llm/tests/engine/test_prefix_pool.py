"""The prefix pool: what is found, what is evicted, what is reported."""

from collections.abc import Callable

import pytest
from repoagent_llm.engine.kv_event_buffer import KVCacheEventManager, KvEventSink
from repoagent_llm.engine.prefix_pool import PrefixKey, PrefixPool, Retention
from repoagent_llm.types.cache_config import KVCacheRemovedData, KVCacheStoredData, KVCacheUpdatedData

KEY = PrefixKey()
TOKENS = list(range(100))


class Clock:
    """A clock that stands still until it is moved."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def manager() -> KVCacheEventManager:
    return KVCacheEventManager(100, 64)


MakePool = Callable[..., PrefixPool]


@pytest.fixture
def make_pool(clock: Clock, manager: KVCacheEventManager) -> MakePool:
    def make(pages: int = 8, *, partial: bool = True) -> PrefixPool:
        return PrefixPool(pages, clock, partial=partial, events=KvEventSink(manager))

    return make


def _store(pool: PrefixPool, tokens: list[int], key: PrefixKey = KEY, retention: Retention | None = None) -> None:
    pool.store(tokens, key, lambda start, stop: tokens[start:stop], lambda start: retention)


def _found(pool: PrefixPool, tokens: list[int], key: PrefixKey = KEY) -> list[int]:
    """The tokens whose cache the pool offers; each piece is checked against its page."""
    pieces = []
    for match in pool.match(tokens, key):
        pieces += match.page.blob[: match.tokens]
    return pieces


def test_the_longest_prefix_is_found_and_one_token_is_left(make_pool: MakePool) -> None:
    pool = make_pool()
    _store(pool, TOKENS[:70])
    assert _found(pool, TOKENS) == TOKENS[:70]
    assert _found(pool, TOKENS[:64]) == TOKENS[:63]
    assert _found(pool, TOKENS[:33]) == TOKENS[:32]
    assert _found(pool, [5, *TOKENS]) == []
    assert _found(pool, [*TOKENS[:40], 0, 0]) == TOKENS[:40]


def test_without_partial_reuse_only_whole_pages_count(make_pool: MakePool) -> None:
    pool = make_pool(partial=False)
    _store(pool, TOKENS[:70])
    assert len(pool) == 2
    assert _found(pool, TOKENS[:50]) == TOKENS[:32]


def test_adapter_and_salt_keep_requests_apart(make_pool: MakePool) -> None:
    pool = make_pool()
    _store(pool, TOKENS[:32], PrefixKey(salt=7))
    for key in (KEY, PrefixKey(salt=0), PrefixKey(salt=8), PrefixKey(lora_id=7), PrefixKey(lora_id=0)):
        assert _found(pool, TOKENS, key) == []
    assert _found(pool, TOKENS, PrefixKey(salt=7)) == TOKENS[:32]


def test_a_longer_page_takes_the_place_of_a_shorter_one(make_pool: MakePool) -> None:
    pool = make_pool()
    _store(pool, TOKENS[:10])
    _store(pool, TOKENS[:20])
    assert len(pool) == 1
    _store(pool, TOKENS[:15])
    assert len(pool) == 1
    assert _found(pool, TOKENS) == TOKENS[:20]


def test_the_page_unused_longest_goes_first_and_parents_outlive_children(make_pool: MakePool) -> None:
    pool = make_pool(3)
    _store(pool, TOKENS[:64])
    _store(pool, [7] * 32)
    _found(pool, TOKENS)
    _store(pool, [8] * 32)
    assert _found(pool, [7] * 40) == []
    assert _found(pool, TOKENS) == TOKENS[:64]
    _store(pool, [9] * 32)
    assert _found(pool, [8] * 40) == []


def test_low_priorities_go_first_and_never_displace_higher_ones(make_pool: MakePool) -> None:
    pool = make_pool(2)
    _store(pool, [1] * 32, retention=Retention(90))
    _store(pool, [2] * 32, retention=Retention(10))
    _store(pool, [3] * 32)
    assert _found(pool, [2] * 40) == []
    assert _found(pool, [1] * 40) == [1] * 32
    _store(pool, [4] * 32, retention=Retention(5))
    assert _found(pool, [4] * 40) == []


def test_a_priority_with_a_duration_falls_back_to_the_default(make_pool: MakePool, clock: Clock) -> None:
    pool = make_pool(1)
    _store(pool, [1] * 32, retention=Retention(90, 5.0))
    _store(pool, [2] * 32)
    assert _found(pool, [2] * 40) == []
    clock.now = 5.0
    _store(pool, [2] * 32)
    assert _found(pool, [2] * 40) == [2] * 32


def test_a_low_priority_with_a_duration_rises_to_the_default(make_pool: MakePool, clock: Clock) -> None:
    pool = make_pool(2)
    _store(pool, [1] * 32, retention=Retention(10, 5.0))
    clock.now = 5.0
    _store(pool, [2] * 32, retention=Retention(20))
    _store(pool, [3] * 32)
    assert _found(pool, [1] * 40) == [1] * 32
    assert _found(pool, [2] * 40) == []


def test_who_says_nothing_of_retention_leaves_a_page_as_dear_as_it_is(make_pool: MakePool, clock: Clock) -> None:
    pool = make_pool(1)
    _store(pool, [1] * 32, retention=Retention(90, 5.0))
    _store(pool, [1] * 32)
    _store(pool, [2] * 32)
    assert _found(pool, [1] * 40) == [1] * 32
    clock.now = 5.0
    _store(pool, [2] * 32)
    assert _found(pool, [2] * 40) == [2] * 32


def test_a_chain_longer_than_the_pool_keeps_its_beginning(make_pool: MakePool) -> None:
    pool = make_pool(2)
    _store(pool, TOKENS)
    assert _found(pool, TOKENS) == TOKENS[:64]


def test_events_tell_what_was_stored_updated_and_removed(make_pool: MakePool, manager: KVCacheEventManager) -> None:
    pool = make_pool(1)
    _store(pool, [1] * 32)
    _store(pool, [1] * 32, retention=Retention(40))
    _store(pool, [2] * 32, retention=Retention(50))
    events = [event.data for event in manager.get_latest_events()]
    stored, updated, removed, again = events
    assert isinstance(stored, KVCacheStoredData)
    assert stored.parent_hash is None
    assert [token.token_id for token in stored.blocks[0].tokens] == [1] * 32
    assert isinstance(updated, KVCacheUpdatedData)
    assert updated.priority is not None
    assert (updated.priority.old_value, updated.priority.new_value) == (35, 40)
    assert isinstance(removed, KVCacheRemovedData)
    assert removed.block_hashes == [stored.blocks[0].block_hash]
    assert isinstance(again, KVCacheStoredData)


def test_a_child_names_its_parent(make_pool: MakePool, manager: KVCacheEventManager) -> None:
    pool = make_pool()
    _store(pool, TOKENS[:32])
    _store(pool, TOKENS[:64])
    first, second = (event.data for event in manager.get_latest_events())
    assert isinstance(first, KVCacheStoredData)
    assert isinstance(second, KVCacheStoredData)
    assert second.parent_hash == first.blocks[0].block_hash


def test_the_event_buffer_drops_the_oldest() -> None:
    manager = KVCacheEventManager(2, 64)
    sink = KvEventSink(manager)
    for number in range(3):
        sink.removed(number)
    assert [event.event_id for event in manager.get_latest_events()] == [1, 2]
    assert manager.get_latest_events(1) == []
