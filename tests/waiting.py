"""Waiting for what another thread or process is about to do."""

import time
from collections.abc import Callable
from typing import Final

PATIENCE: Final = 120.0
"""Seconds. A machine that is busy with other tests may take long."""


def until(condition: Callable[[], object], what: Callable[[], str] = str) -> None:
    """Return once ``condition`` holds.

    Raises:
        AssertionError: it did not in time; the text is ``what()``.
    """
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what()
        time.sleep(0.002)
