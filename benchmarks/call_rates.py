"""What the benchmarks of calls in one process share: medians taken in turns, calls per second."""

import statistics
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

__all__ = ["BLOCK", "THREADS", "Call", "medians", "rate"]

THREADS: Final = 8
BLOCK: Final = 200
"""How many calls one variant makes before it is another one's turn."""

Call = Callable[[], object]


def medians(calls: Mapping[str, Call], rounds: int) -> dict[str, float]:
    """The median microseconds of each of ``calls``; they take turns, so that a slow moment of the machine hits all."""
    for call in calls.values():
        _measure(call)
    times: dict[str, list[int]] = {name: [] for name in calls}
    for _ in range(rounds // BLOCK):
        for name, call in calls.items():
            times[name] += _measure(call)
    return {name: statistics.median(values) / 1000 for name, values in times.items()}


def _measure(call: Call) -> list[int]:
    """Nanoseconds of each call of one block."""
    times = []
    for _ in range(BLOCK):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return times


def rate(call: Call, seconds: float) -> float:
    """Calls per second of :data:`THREADS` threads together."""
    stop = time.monotonic() + seconds
    counts = [0] * THREADS

    def work(index: int) -> None:
        while time.monotonic() < stop:
            call()
            counts[index] += 1

    threads = [threading.Thread(target=work, args=(index,)) for index in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds
