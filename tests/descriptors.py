"""What this process has open, for tests that nothing stays so."""

import contextlib
import os
from pathlib import Path

__all__ = ["descriptors_beneath"]


def descriptors_beneath(directory: Path) -> list[str]:
    """What this process has open there. Other descriptors come and go with threads of other tests."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it has just been closed
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [target for target in found if Path(target).is_relative_to(directory)]
