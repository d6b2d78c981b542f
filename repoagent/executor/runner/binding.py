"""Runs bound to arrays by their addresses."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Run", "bind_input", "bind_output"]


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
