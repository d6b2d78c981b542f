"""LogitRows: the arrays that a runner's logits are written to."""

import numpy as np

__all__ = ["LogitRows"]


class LogitRows:
    """``logits`` float32 [rows, vocabulary] and ``argmax`` int64 [rows], bound by their addresses."""

    def __init__(self, rows: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._allocate(rows)

    def _allocate(self, rows: int) -> None:
        self.logits = np.zeros((rows, self._vocab_size), np.float32)
        self.argmax = np.zeros(rows, np.int64)

    def ensure(self, rows: int) -> bool:
        """Make room for so many rows. True: the arrays were replaced, so what is bound to them must be bound anew."""
        if rows <= len(self.logits):
            return False
        self._allocate(rows)
        return True
