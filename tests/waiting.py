"""Waiting for what another thread or process is about to do."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

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


@pytest.fixture
def in_background() -> Iterator[Callable[[Callable[[], Any]], Callable[[], Any]]]:
    """Call a function on a thread; what is returned waits for its result."""
    with ThreadPoolExecutor(8) as pool:

        def begin(function: Callable[[], Any]) -> Callable[[], Any]:
            future = pool.submit(function)
            return lambda: future.result(PATIENCE)

        yield begin
