"""The processes that a process has started."""

import contextlib
from pathlib import Path

__all__ = ["children"]


def children(parent: int) -> set[int]:
    """Their numbers, from what each process states of its parent.

    The lists below ``/proc/PID/task`` are no source: a thread that ends while they are read hands its own to another,
    which may have been read already.
    """
    found: set[int] = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.add(int(stat.parent.name))
    return found
