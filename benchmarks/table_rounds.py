"""Rounds over the cells of a table, repeated while others disturb them, and the machine that they are taken on."""

import os
import platform
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

__all__ = ["QUIET_CORES", "Sample", "machine", "quiet", "rounds"]

QUIET_CORES = 0.12
"""A measurement is quiet if other processes took at most so much meanwhile."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What was done per second, and how many cores other processes took meanwhile."""

    rate: float
    others: float


Cell = TypeVar("Cell")
Taken = TypeVar("Taken", bound=Sample)


def rounds(
    cells: Sequence[Cell], take: Callable[[Cell], Taken], wanted: int, deadline: float, *, once: bool = False
) -> dict[Cell, list[Taken]]:
    """Measure every cell in turn until each has ``wanted`` quiet samples, or ``deadline`` (monotonic) is over.

    The first round is always whole; with ``once`` it is the only one.
    """
    samples: dict[Cell, list[Taken]] = defaultdict(list)
    while unfinished := [cell for cell in cells if len(quiet(samples[cell], only=True)) < wanted]:
        for cell in unfinished:
            if samples[cell] and time.monotonic() > deadline:
                return samples
            samples[cell].append(take(cell))
        if once:
            break
    return samples


def quiet(samples: Sequence[Taken], *, only: bool = False) -> list[Taken]:
    """Those that others did not disturb; if there are none, all, unless ``only`` they are wanted."""
    found = [sample for sample in samples if sample.others <= QUIET_CORES]
    return found if found or only else list(samples)


def machine() -> str:
    """The cores, the processor, the system and Python."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return (
        f"{os.cpu_count()} cores ({next(named, platform.machine())}), {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}"
    )
