"""The prefix pool: what is found, what is evicted, what is reported."""

import random
from collections.abc import Callable
from functools import partial as partial_of
from types import SimpleNamespace
from typing import Any

import pytest
from repoagent_llm.engine.block_files import BlockFiles
from repoagent_llm.engine.kv_event_buffer import KVCacheEventManager, KvEventSink
from repoagent_llm.engine.page import BlockHash, LeafOrder, Page, PrefixKey
from repoagent_llm.engine.prefix_pool import PrefixPool, Retention
from repoagent_llm.types.cache_config import (
    KVCacheEventDiffInt,
    KVCacheRemovedData,
    KVCacheStoredData,
    KVCacheUpdatedData,
)

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


# LeafOrder gives up the page that a look at all of them would choose.


class PlainOrder(LeafOrder):
    """Looks at all pages."""

    def put(self, page: Page) -> None:
        """Nothing to note."""

    def first(self, keep: BlockHash | None = None) -> Page | None:
        """See LeafOrder."""
        leaves = [page for page in self._pages.values() if not page.children and page.hash != keep]
        return min(leaves, key=lambda page: (page.priority_at(self._clock()), page.used), default=None)


def _prompt(chance: random.Random) -> list[int]:
    """Prompts share beginnings, and some end within a page."""
    text = [chance.randrange(3)] * 40 + [chance.randrange(3)] * 40
    return text[: chance.choice([5, 32, 33, 64, 70, 80])]


def _said(retention: Retention | None, start: int) -> Retention | None:
    return retention


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("partial", [True, False])
def test_the_same_pages_stay_as_when_all_are_looked_at(seed: int, partial: bool) -> None:
    chance, clock = random.Random(seed), Clock()
    pools = [PrefixPool(6, clock, partial=partial, events=KvEventSink()) for _ in range(2)]
    pools[1]._leaves = PlainOrder(pools[1]._pages, clock)
    for _ in range(400):
        clock.now += chance.choice([0.0, 0.0, 1.0])
        prompt, key = _prompt(chance), PrefixKey(salt=chance.choice([None, 1]))
        said = Retention(chance.choice([0, 35, 35, 80]), chance.choice([None, 1.0, 5.0]))
        wanted = chance.choice([said, None])
        matching = chance.random() < 0.4
        for pool in pools:
            if matching:
                pool.match(prompt, key)
            else:
                pool.store(prompt, key, lambda start, stop: None, partial_of(_said, wanted))
        assert list(pools[0]._pages) == list(pools[1]._pages)


def test_a_page_that_is_used_for_ever_does_not_make_the_order_longer() -> None:
    pool = PrefixPool(6, Clock(), events=KvEventSink())
    for _ in range(2000):
        pool.store([1] * 40, PrefixKey(), lambda start, stop: None, lambda start: Retention(50, 9.0))
        pool.match([1] * 40, PrefixKey())
    assert len(pool._leaves._order) + len(pool._leaves._expiring) < 500


class _Files:
    """A store that writes at once; what it has can be taken from it, as a full folder does."""

    def __init__(self) -> None:
        self.kept: dict[int, bytes] = {}
        self.has = self.kept.__contains__

    def keep(self, number: int, tokens: Any, data: bytes) -> None:
        self.kept[number] = data

    def load(self, number: int, tokens: Any) -> bytes | None:
        return self.kept.get(number)

    def heads(self, size: int) -> Any:
        return ((number, data[:size]) for number, data in self.kept.items())


def test_blocks_in_files_from_before_have_level_1(clock: Clock, manager: KVCacheEventManager) -> None:
    files: Any = _Files()
    runner: Any = SimpleNamespace(read_block=bytes, restore=list, pool=SimpleNamespace(free=1))

    def start() -> PrefixPool:
        return PrefixPool(9, clock, events=KvEventSink(manager), disk=BlockFiles(runner, files))

    tokens = list(range(96))
    _store(start(), tokens)
    before = manager.get_latest_events()
    first, second, third = files.kept
    pool = start()
    events = manager.get_latest_events()
    for stored, level in ((before[0].data, 0), (events[0].data, 1)):
        assert isinstance(stored, KVCacheStoredData)
        assert stored.parent_hash is None
        assert [block.block_hash for block in stored.blocks] == [first, second, third]
        assert [token.token_id for block in stored.blocks for token in block.tokens] == tokens
        assert {block.cache_level for block in stored.blocks} == {level}
    assert _found(pool, [*tokens[:32], 0]) == tokens[:32]
    (event,) = manager.get_latest_events()
    assert event.data == KVCacheUpdatedData(first, KVCacheEventDiffInt(1, 0))
    # Without the second the third is not found, and one that was changed is not what its name states.
    changed = files.kept.pop(second)
    start()
    (event,) = manager.get_latest_events()
    assert isinstance(event.data, KVCacheStoredData)
    assert [block.block_hash for block in event.data.blocks] == [first]
    files.kept[second] = changed[:9] + b"x" + changed[10:]
    files.kept[first] = b""
    start()
    assert manager.get_latest_events() == []


def test_a_block_that_is_in_a_file_alone_has_level_1(clock: Clock, manager: KVCacheEventManager) -> None:
    files: Any = _Files()
    runner: Any = SimpleNamespace(read_block=bytes, restore=list, pool=SimpleNamespace(free=1))
    pool = PrefixPool(1, clock, events=KvEventSink(manager), disk=BlockFiles(runner, files))
    first, second, third = (list(range(start, start + 32)) for start in (0, 50, 100))
    _store(pool, first)
    (one,) = files.kept
    _store(pool, second)  # there is room for one: the first is in its file alone
    stored, moved, _ = [event.data for event in manager.get_latest_events()]
    assert isinstance(stored, KVCacheStoredData)
    assert moved == KVCacheUpdatedData(one, KVCacheEventDiffInt(0, 1))

    assert _found(pool, [*first, 0]) == first
    other = next(name for name in files.kept if name != one)
    assert [event.data for event in manager.get_latest_events()] == [
        KVCacheUpdatedData(other, KVCacheEventDiffInt(0, 1)),
        KVCacheUpdatedData(one, KVCacheEventDiffInt(1, 0)),
    ]

    del files.kept[other]  # the folder has removed it
    _store(pool, third)
    found = [event.data for event in manager.get_latest_events()]
    assert KVCacheRemovedData([other]) in found
    del files.kept[one]
    assert _found(pool, [*first, 0]) == []
    assert [event.data for event in manager.get_latest_events()] == [KVCacheRemovedData([one])]
