"""Measuring on a machine that others use too: what they took is counted, and samples with much of it are repeated."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Sample = TypeVar("Sample")
LIMIT = 0.1
_STAT = Path("/proc/stat")


def _busy_seconds() -> float:
    """CPU seconds that all processes have used; 0 where the system does not say."""
    if not _STAT.exists():
        return 0.0
    fields = [int(field) for field in _STAT.read_text().split("\n", 1)[0].split()[1:]]
    return (sum(fields[:8]) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


class Others:
    """The share of all cores that other processes used inside the ``with`` block."""

    share = 0.0

    def __enter__(self) -> "Others":
        self._start = time.perf_counter(), _busy_seconds(), time.process_time()
        return self

    def __exit__(self, *error: object) -> None:
        began, busy, own = self._start
        seconds = time.perf_counter() - began
        used = _busy_seconds() - busy - (time.process_time() - own)
        self.share = max(0.0, used) / (seconds * (os.cpu_count() or 1))


def wait_for_quiet(patience: float) -> None:
    """Return when others use little for half a second, or when ``patience`` seconds are over."""
    deadline = time.perf_counter() + patience
    while time.perf_counter() < deadline:
        with Others() as others:
            time.sleep(0.5)
        if others.share < LIMIT:
            return


def quiet_samples(measure: Callable[[], Sample], count: int, patience: float) -> tuple[list[Sample], float]:
    """``count`` samples, and the largest share that others had in one of them.

    Samples are taken until ``count`` of them saw little of others, or for ``patience`` seconds; the quietest count.
    """
    deadline = time.perf_counter() + patience
    found: list[tuple[float, Sample]] = []
    while len(found) < count or (sum(share < LIMIT for share, _ in found) < count and time.perf_counter() < deadline):
        wait_for_quiet(deadline - time.perf_counter())
        with Others() as others:
            sample = measure()
        found.append((others.share, sample))
    found.sort(key=lambda item: item[0])
    return [sample for _, sample in found[:count]], found[count - 1][0]
