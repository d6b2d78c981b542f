"""LeafOrder gives up the page that a look at all of them would choose."""

import random
from functools import partial as partial_of

import pytest
from repoagent_llm.engine.kv_event_buffer import KvEventSink
from repoagent_llm.engine.prefix_pool import BlockHash, LeafOrder, Page, PrefixKey, PrefixPool, Retention


class Clock:
    """Moves when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


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
