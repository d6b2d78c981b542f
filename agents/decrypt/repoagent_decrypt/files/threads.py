"""How many threads to use."""

import os
from typing import Final

__all__ = ["thread_count"]

_MOST: Final = 8


def thread_count(wanted: int | None) -> int:
    """``wanted``, or one per CPU this process may use, at most 8; always at least 1."""
    if wanted is not None:
        return max(1, wanted)
    return min(_MOST, len(os.sched_getaffinity(0)))
