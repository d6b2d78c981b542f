"""What this process has open, and a process that can open nothing more."""

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path


def descriptors_beneath(directory: Path) -> list[str]:
    """What this process has open there. Other descriptors come and go with threads of other tests."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it has just been closed
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [target for target in found if Path(target).is_relative_to(directory)]


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """This process can open no further file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
