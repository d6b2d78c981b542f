"""Masks of tokens as grammars write them: one bit per token, the lowest bit of the first word first."""

import numpy as np
import numpy.typing as npt

__all__ = ["forbid", "words_for"]


def words_for(vocab_size: int) -> npt.NDArray[np.int32]:
    """A mask for ``vocab_size`` tokens, all zero."""
    return np.zeros(-(-vocab_size // 32), np.int32)


def forbid(row: npt.NDArray[np.float32], words: npt.NDArray[np.int32]) -> None:
    """Set the logits of tokens whose bit is zero to minus infinity."""
    allowed = np.unpackbits(words.view(np.uint8), count=len(row), bitorder="little")
    row[allowed == 0] = -np.inf
