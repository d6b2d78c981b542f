"""LogitRows: the arrays that a runner's logits are written to."""

from typing import Final

import numpy as np

__all__ = ["LogitRows"]

# More memory than this is given back when it is not needed any more: context logits of a long prompt take a lot.
_KEPT_BYTES: Final = 64 << 20


class LogitRows:
    """``logits`` float32 [rows, vocabulary] and ``argmax`` int64 [rows], bound by their addresses."""

    def __init__(self, rows: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._least = rows
        self._allocate(rows)

    def _allocate(self, rows: int) -> None:
        self.logits = np.zeros((rows, self._vocab_size), np.float32)
        self.argmax = np.zeros(rows, np.int64)

    def ensure(self, rows: int) -> bool:
        """Make room for so many rows. True: the arrays were replaced, so what is bound to them must be bound again."""
        there = len(self.logits)
        too_much = self.logits.nbytes > _KEPT_BYTES and 4 * max(rows, self._least) < there
        if rows <= there and not too_much:
            return False
        self._allocate(max(rows, self._least))
        return True
