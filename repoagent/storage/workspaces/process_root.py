"""The two kinds of place for workspaces: on a disk, and in memory (wiped)."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from repoagent.errors import RepoAgentError
from repoagent.storage.workspaces.disk_space import DiskSpace
from repoagent.storage.workspaces.private import private_directory
from repoagent.storage.workspaces.process_dir import ProcessDirectory, sweep

__all__ = ["ProcessRoot", "sweep_memory", "sweep_root"]

logger = logging.getLogger(__name__)


class ProcessRoot:
    """This process's directory on the disk or in memory, made when first needed."""

    def __init__(self, root: Path, *, wipe: bool, free: Callable[[Path], int | None]) -> None:
        self.wipe = wipe
        self._root = root
        self._free = free
        self._lock = threading.Lock()
        self._opened: tuple[ProcessDirectory, DiskSpace] | None = None

    def open(self) -> tuple[Path, DiskSpace]:
        """Where to put things and how much room there is. Errors as in :class:`ProcessDirectory`."""
        with self._lock:
            if self._opened is None:
                private_directory(self._root, purpose="confidential workspace" if self.wipe else "workspace")
                directory = ProcessDirectory(self._root, wipe=self.wipe)
                self._opened = directory, DiskSpace(directory.path, free=self._free)
            return self._opened[0].path, self._opened[1]

    def close(self) -> None:
        """Remove the directory; again is fine."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened[0].close()


def sweep_root(root: Path, *, wipe: bool) -> None:
    """Remove what dead processes left in a private root."""
    removed = sweep(root, wipe=wipe)
    if removed:
        logger.info("removed what %d dead processes left in %s", len(removed), root)


def sweep_memory(root: Path) -> None:
    """Someone else's directory of our name in a place open to all must not stop a server that needs none."""
    try:
        sweep_root(private_directory(root, purpose="confidential workspace"), wipe=True)
    except (RepoAgentError, OSError) as error:
        logger.warning("confidential workspaces are not available: %s", error)
