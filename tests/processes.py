"""What the kernel knows of processes: which there are, whether one runs, and its memory."""

import contextlib
from pathlib import Path


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


def runs(pid: int) -> bool:
    """Whether there is such a process, and it has not ended without being waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def memory_of(field: str, pid: int | str = "self") -> int:
    """Bytes of a size of ``/proc/PID/status``: VmRSS, VmHWM, RssAnon."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))
