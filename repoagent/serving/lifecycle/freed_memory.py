"""Memory that was freed goes back to the system.

glibc keeps what threads have freed between other blocks: after a thousand models of 1 MB had been loaded and unloaded,
a server still held 2 GB of it.
"""

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from typing import Final

__all__ = ["DELAY_SECONDS", "give_back_soon"]

DELAY_SECONDS: Final = 0.2
"""Looking for free memory takes longer the more there is in use: once after many unloads, not after each."""
_sleeper: Final = threading.Lock()
_never: Final = threading.Event()


def give_back_soon() -> None:
    """Give freed memory back after a while, where the C library can; returns at once if another thread is about to.

    For a thread that has nothing else to do.
    """
    if _sleeper.acquire(blocking=False):
        try:
            _never.wait(DELAY_SECONDS)
        finally:
            _sleeper.release()  # What is freed from here on is for the next one.
        _trim()(0)


@cache
def _trim() -> Callable[[int], object]:
    trim: Callable[[int], object] = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)
    return trim
