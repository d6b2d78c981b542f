"""BlockBudget: how many KV blocks there are and who holds how many. Counting only; the memory is the runner's."""

from typing import Final

__all__ = ["BLOCK_TOKENS", "BlockBudget", "blocks_for"]

BLOCK_TOKENS: Final = 32


def blocks_for(tokens: int) -> int:
    """Blocks that hold ``tokens`` tokens."""
    return -(-tokens // BLOCK_TOKENS)


class BlockBudget:
    """Blocks by owner (a request's id)."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.free = total
        self._held: dict[int, int] = {}

    @property
    def used(self) -> int:
        """Blocks that someone holds."""
        return self.total - self.free

    def held(self, owner: int) -> int:
        """Blocks that ``owner`` holds."""
        return self._held.get(owner, 0)

    def grow(self, owner: int, blocks: int) -> bool:
        """See that ``owner`` holds at least ``blocks``; False, and nothing changes, if there are too few."""
        more = blocks - self.held(owner)
        if more <= 0:
            return True
        if more > self.free:
            return False
        self.free -= more
        self._held[owner] = blocks
        return True

    def release(self, owner: int) -> None:
        """Take back what ``owner`` holds."""
        self.free += self._held.pop(owner, 0)
