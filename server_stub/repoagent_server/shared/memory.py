"""How much memory this process may have, and what of it one message may take."""

import os
from pathlib import Path
from typing import Final

_SHARE: Final = 16
"""gRPC holds a message up to eight times while it is received, parsed and answered; two at once must fit."""
_LEAST: Final = 1 << 26
_MOST: Final = (1 << 31) - 1
_CGROUPS: Final = Path("/sys/fs/cgroup")


def default_message_bytes() -> int:
    """A sixteenth of the memory, at least 64 MiB and at most what gRPC can count, as Triton's default."""
    return min(_MOST, max(_LEAST, memory_bytes() // _SHARE))


def memory_bytes(cgroups: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """The memory of the machine, or less where a control group (of a container, of a service) allows less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_allowed(cgroups, own)])


def _allowed(cgroups: Path, own: Path) -> list[int]:
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    group = next((line.removeprefix("0::").lstrip("/") for line in lines if line.startswith("0::")), "")
    folders = [cgroups / group, *(cgroups / group).parents]
    files = [folder / "memory.max" for folder in folders if folder.is_relative_to(cgroups)]
    return [limit for file in (*files, cgroups / "memory" / "memory.limit_in_bytes") if (limit := _number(file))]


def _number(file: Path) -> int:
    try:
        text = file.read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0
