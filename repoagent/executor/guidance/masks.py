"""Masks of tokens as grammars write them: one bit per token, the lowest bit of the first word first."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["forbid", "words_for", "words_of"]


def words_for(vocab_size: int) -> npt.NDArray[np.int32]:
    """A mask for ``vocab_size`` tokens, all zero."""
    return np.zeros(-(-vocab_size // 32), np.int32)


def words_of(allowed: Sequence[bool]) -> npt.NDArray[np.int32]:
    """The mask of tokens that are ``allowed``, by id."""
    words = words_for(len(allowed))
    packed = np.packbits(allowed, bitorder="little")
    words.view(np.uint8)[: len(packed)] = packed
    return words


def forbid(row: npt.NDArray[np.float32], words: npt.NDArray[np.int32]) -> None:
    """Set the logits of tokens whose bit is zero to minus infinity."""
    allowed = np.unpackbits(words.view(np.uint8), count=len(row), bitorder="little")
    row[allowed == 0] = -np.inf
