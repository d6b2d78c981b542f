"""Whether a directory lies in memory and only there."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from repoagent.errors import UnavailableError, UnsupportedError

PROC: Final = Path("/proc")
_MEMORY: Final = frozenset({"tmpfs", "ramfs"})


@dataclass(frozen=True, slots=True)
class _Mount:
    kind: str
    options: frozenset[str]


def check_memory_only(directory: Path, *, allow_swap: bool = False, proc: Path = PROC) -> None:
    """Check that files in ``directory`` never reach a disk.

    Args:
        directory: An existing directory.
        allow_swap: The operator accepts that the kernel may swap tmpfs pages out (its swap is encrypted, for example).
        proc: Where procfs is mounted.

    Raises:
        UnsupportedError: it is missing, or not on tmpfs or ramfs.
        UnavailableError: swap is on, or whether it is on cannot be found out.
    """
    if not directory.is_dir():
        raise UnsupportedError(f"{directory} does not exist, so there is no place in memory for confidential files")
    mount = _mount_of(directory, proc)
    if mount is None or mount.kind not in _MEMORY:
        kind = mount.kind if mount else "an unknown filesystem"
        raise UnsupportedError(f"{directory} is on {kind}; confidential files need a tmpfs or ramfs")
    if allow_swap or mount.kind == "ramfs" or "noswap" in mount.options:
        return
    devices = swap_devices(proc)
    if devices:
        raise UnavailableError(
            f"swap is on ({', '.join(devices)}), so confidential files in {directory} could reach a disk; turn it off "
            "(swapoff -a), mount the tmpfs with 'noswap', or allow swap if it is encrypted"
        )


def swap_devices(proc: Path = PROC) -> list[str]:
    """The devices and files that memory may be swapped to.

    Raises:
        UnavailableError: procfs does not show it.
    """
    try:
        lines = (proc / "swaps").read_text().splitlines()
    except OSError as error:
        raise UnavailableError(f"cannot find out whether swap is on: {proc / 'swaps'}: {error.strerror}") from error
    return [line.split()[0] for line in lines[1:] if line.strip()]


def _mount_of(directory: Path, proc: Path) -> _Mount | None:
    """Find the mount by device number: paths would need unescaping, and mounts can hide each other."""
    device = os.stat(directory).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = (proc / "self" / "mountinfo").read_text().splitlines()
    except OSError as error:
        raise UnsupportedError(f"cannot find out what {directory} is mounted on: {error.strerror}") from error
    # man 5 proc: id parent major:minor root point options [tags...] - type source super-options
    for line in lines:
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            kind, _source, options = after.split(maxsplit=2)
            return _Mount(kind, frozenset(options.split(",")))
    return None
