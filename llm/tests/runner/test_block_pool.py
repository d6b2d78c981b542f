"""The block pool: what is held, shared, retained and given up."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from repoagent_llm.runner.block_pool import BlockPool
from repoagent_llm.types.executor_errors import EngineError


def test_blocks_are_free_when_the_last_holder_lets_go() -> None:
    pool = BlockPool(3)
    one, two = pool.take(2)
    pool.share([one])
    pool.retain([two])
    assert (pool.free, pool.busy, pool.available) == (1, 2, 1)
    pool.drop([one, two])
    assert (pool.free, pool.busy, pool.available) == (1, 1, 2)  # the retained one may be had, and is not free
    assert pool.shared(one) is pool.shared(two) is False
    pool.drop([one])
    pool.release([two])
    assert (pool.free, pool.busy) == (3, 0)


def test_a_shortage_gives_up_retained_pieces_until_there_is_enough() -> None:
    pool = BlockPool(4)
    kept = pool.take(3)
    pool.retain(kept)
    pool.drop(kept[:2])
    given_up: list[int] = []

    def reclaim() -> bool:
        if len(given_up) == 3:
            return False
        given_up.append(kept[2 - len(given_up)])
        pool.release(given_up[-1:])
        return True

    pool.reclaim = reclaim
    assert kept[1] in pool.take(2)
    assert given_up == [kept[2], kept[1]]  # the first was held by a sequence as well, and gave nothing
    with pytest.raises(EngineError, match="has 1 of 4 blocks left, and 2 are needed"):
        pool.take(2)
    assert pool.free == 1


@pytest.mark.parametrize("call", ["share", "drop", "retain", "release"])
def test_what_nobody_holds_cannot_be_shared_or_dropped(call: str) -> None:
    with pytest.raises(EngineError, match="block 1"):
        getattr(BlockPool(2), call)([1])


class Holders(RuleBasedStateMachine):
    """Any order of calls beside two lists of holders."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(6)
        self.pool.reclaim = self._reclaim
        self.used: list[int] = []
        self.retained: list[int] = []

    def _reclaim(self) -> bool:
        if not self.retained:
            return False
        self.pool.release([self.retained.pop(0)])
        return True

    @rule(count=st.integers(0, 7))
    def take(self, count: int) -> None:
        if count > 6 - len(set(self.used)):
            with pytest.raises(EngineError):
                self.pool.take(count)
            return
        taken = self.pool.take(count)
        assert not set(taken) & {*self.used, *self.retained}
        self.used += taken

    @precondition(lambda self: self.used)
    @rule(data=st.data(), call=st.sampled_from(["share", "retain", "drop"]))
    def change(self, data: st.DataObject, call: str) -> None:
        block = data.draw(st.sampled_from(self.used))
        getattr(self.pool, call)([block])
        if call == "drop":
            self.used.remove(block)
        else:
            (self.used if call == "share" else self.retained).append(block)

    @precondition(lambda self: self.retained)
    @rule(data=st.data())
    def reuse(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.retained))
        self.pool.share([block])
        self.used.append(block)

    @invariant()
    def counts_agree(self) -> None:
        assert self.pool.busy == len(set(self.used))
        assert self.pool.free == 6 - len({*self.used, *self.retained})
        for block in {*self.used, *self.retained}:
            assert self.pool.shared(block) == ([*self.used, *self.retained].count(block) > 1)


TestHolders = Holders.TestCase
TestHolders.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
