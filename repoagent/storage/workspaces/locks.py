"""Locks between processes that a killed holder cannot leave behind."""

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from repoagent.errors import CancelledError

_POLL_SECONDS: Final = 0.05


class FileLock:
    """An ``flock`` on a file. The kernel drops it when the holder dies, however it dies.

    Each object opens the file for itself, so two of them exclude each other in one process as well.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._fd is not None

    def fileno(self) -> int:
        """The descriptor of the held lock: a process that inherits it holds the lock, too."""
        assert self._fd is not None, "the lock is not held"
        return self._fd

    def acquire(self, *, shared: bool = False, cancelled: Callable[[], bool] | None = None) -> None:
        """Wait for the lock, which this object must not hold yet; ``CancelledError`` if ``cancelled()`` became true."""
        if cancelled is None:
            while not self._lock(shared, blocking=True):
                continue
            return
        pause = threading.Event()
        while not self._lock(shared, blocking=False):
            if cancelled():
                raise CancelledError(f"cancelled while waiting for the lock {self._path.name}")
            pause.wait(_POLL_SECONDS)

    @contextmanager
    def acquired(self) -> Iterator[None]:
        """Hold the lock, exclusively, for a block."""
        self.acquire()
        try:
            yield
        finally:
            self.release()

    def try_acquire(self, *, shared: bool = False) -> bool:
        """Take the lock if no one holds it against us; ``OSError`` if the lock's directory is gone."""
        return self._lock(shared, blocking=False)

    def release(self) -> None:
        """Let go; fine if not held."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def unlink(self) -> None:
        """Remove the file of an exclusively held lock. Who waits for it notices, and takes a new file."""
        self._path.unlink(missing_ok=True)

    def _lock(self, shared: bool, *, blocking: bool) -> bool:
        if self._fd is None:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(self._fd, mode if blocking else mode | fcntl.LOCK_NB)
        except OSError as error:
            self.release()
            if isinstance(error, BlockingIOError):
                return False
            raise
        if os.fstat(self._fd).st_nlink == 0:
            self.release()
            return False
        return True
