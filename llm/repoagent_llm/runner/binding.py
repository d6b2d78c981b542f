"""Runs bound to arrays by their addresses, and what the two forms of graph are fed in their own ways."""

from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

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


@dataclass(slots=True)
class Run:
    """A bound run: the arrays that it reads. ``kept``: others of which the binding has only the address."""

    binding: Any
    tokens: npt.NDArray[np.int64]
    index: npt.NDArray[np.int64]
    feeds: dict[str, npt.NDArray[Any]]
    kept: list[npt.NDArray[Any]] = field(default_factory=list)


def bind_input(binding: Any, name: str, array: npt.NDArray[Any]) -> None:
    binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def bind_output(binding: Any, name: str, array: npt.NDArray[Any]) -> None:
    binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


class FormFeeds(Protocol):
    """The inputs by which one form of graph gets the place of each row.

    ``reads_masked``: what lies behind a row's end enters the arithmetic, with a weight of zero. That is no harm unless
    it is no number: zero times NaN is NaN.
    """

    reads_masked: bool

    def arrays(self, batch: int, width: int) -> dict[str, npt.NDArray[Any]]:
        """New arrays by input name for runs of ``batch`` rows and ``width`` columns."""

    def fill(
        self,
        arrays: dict[str, npt.NDArray[Any]],
        lengths: npt.NDArray[np.int64],
        longest: int,
        width: int,
        counts: npt.NDArray[np.int64] | int = 1,
    ) -> None:
        """Say that the rows hold ``lengths`` tokens before the run, and that their first ``counts`` columns count.

        ``longest``: the largest of the lengths.
        """
