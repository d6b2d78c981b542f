"""BlockPool: the blocks of a paged KV cache by number. It counts holders; the memory is the runner's.

A block is held by sequences, by retained pieces of finished texts, or by both. One without holders is free. Where
free blocks do not suffice, ``reclaim`` gives up retained pieces, the cheapest first.
"""

from collections.abc import Callable, Iterable
from typing import Final

from repoagent_llm.types.executor_errors import EngineError

BLOCK_TOKENS: Final = 32


def blocks_for(tokens: int) -> int:
    """Blocks that hold ``tokens`` tokens."""
    return -(-tokens // BLOCK_TOKENS)


class BlockPool:
    """``reclaim``: lets go of one retained piece; False where there is none. It calls :meth:`release`."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.reclaim: Callable[[], bool] | None = None
        #: Blocks that sequences hold, each counted once.
        self.busy = 0
        # The last one is taken first: what was used before is used again, so that memory grows late.
        self._free = list(range(total - 1, -1, -1))
        self._used = [0] * total
        self._retained = [0] * total

    @property
    def free(self) -> int:
        """Blocks without a holder."""
        return len(self._free)

    @property
    def available(self) -> int:
        """Blocks that sequences may still take: free ones, and those that only retained pieces hold."""
        return self.total - self.busy

    def shared(self, block: int) -> bool:
        """Whether more than one holds a block, so that none of them may write into it."""
        return self._used[block] + self._retained[block] > 1

    def is_busy(self, block: int) -> bool:
        """Whether a sequence holds a block."""
        return self._used[block] > 0

    def take(self, count: int) -> list[int]:
        """Blocks that were free, for one sequence.

        Raises:
            EngineError: there are too few, also without retained pieces. Then none is taken.
        """
        while len(self._free) < count:
            if self.reclaim is None or not self.reclaim():
                raise EngineError(
                    f"the KV cache has {len(self._free)} of {self.total} blocks left, and {count} are needed"
                )
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._used[block] = 1
        self.busy += count
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """One more sequence holds each of these, which are not free."""
        for block in blocks:
            self._check_held(block)
            self.busy += self._used[block] == 0
            self._used[block] += 1

    def drop(self, blocks: Iterable[int]) -> None:
        """A sequence holds each of these no more."""
        for block in blocks:
            if self._used[block] == 0:
                raise EngineError(f"block {block} is held by no sequence")
            self._used[block] -= 1
            if self._used[block] == 0:
                self.busy -= 1
                self._free_if_unheld(block)

    def retain(self, blocks: Iterable[int]) -> None:
        """One more retained piece holds each of these, which are not free."""
        for block in blocks:
            self._check_held(block)
            self._retained[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """A retained piece holds each of these no more."""
        for block in blocks:
            if self._retained[block] == 0:
                raise EngineError(f"block {block} is not retained")
            self._retained[block] -= 1
            self._free_if_unheld(block)

    def _free_if_unheld(self, block: int) -> None:
        if self._used[block] + self._retained[block] == 0:
            self._free.append(block)

    def _check_held(self, block: int) -> None:
        if self._used[block] + self._retained[block] == 0:
            raise EngineError(f"block {block} is free, so it cannot be shared")
