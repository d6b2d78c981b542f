"""What a test of processes and shared memory must not leave open."""

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

_PATIENCE = 60


@pytest.fixture(scope="module", autouse=True)
def what_others_left_is_no_garbage() -> None:
    """Each look at what is held collects garbage; what earlier modules imported and keep need not be gone through."""
    gc.collect()
    gc.freeze()


def _held() -> tuple[int, int]:
    """Open descriptors, and threads that watch a process."""
    gc.collect()
    watching = sum(thread.name.endswith("-process") for thread in threading.enumerate())
    return len(os.listdir("/proc/self/fd")), watching


@contextmanager
def _nothing_left() -> Iterator[None]:
    before = _held()
    yield
    # What is ending may end, and threads that other tests left (of S3's or gRPC's libraries) open and close
    # descriptors of their own at any time.
    end = time.monotonic() + _PATIENCE
    while any(now > then for now, then in zip(_held(), before, strict=True)):
        assert time.monotonic() < end, f"descriptors and threads: {before} before, {_held()} now"
        time.sleep(0.01)


@pytest.fixture
def nothing_left() -> Callable[[], AbstractContextManager[None]]:
    """A ``with`` block that must leave no more descriptors open, and threads running, than it found."""
    return _nothing_left
