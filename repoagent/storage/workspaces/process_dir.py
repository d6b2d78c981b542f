"""One directory per process below a shared root, and the removal of those whose process is dead.

Below ``root``::

    .lock                     held while a directory is made or the dead are looked for
    <pid>-<random>/           flock'ed by its process for as long as that lives
    <pid>-<random>/.alive     flock'ed, too: not every network filesystem locks directories
    <pid>-<random>/...        what the process keeps here

A directory appears and is locked under ``.lock``, so a directory that can be locked under ``.lock`` has no living
owner. Its removal takes ``.alive`` last: killed in the middle, the next start goes on.

systemd-tmpfiles leaves locked directories alone; the root is locked for the sake of ``.lock``. Other cleaners do not
ask, so a directory that is gone is made again.
"""

import contextlib
import fcntl
import logging
import os
import re
import secrets
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from repoagent.errors import InvalidArgumentError, RepoAgentError, UnavailableError
from repoagent.storage.paths.trees import remove_tree, tree_size
from repoagent.storage.workspaces.locks import FileLock
from repoagent.storage.workspaces.private import private_root


def free_bytes(path: Path) -> int | None:
    """The bytes that an unprivileged user may still write; None where the filesystem knows no limit (ramfs)."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize if status.f_blocks else None


def check_space(path: Path, needed: int, *, what: str, taken: int = 0, free: int | None = None) -> None:
    """Raise ``UnavailableError`` if ``path`` has less than ``needed`` bytes free, ``taken`` subtracted."""
    available = None if free is None else max(0, free - taken)
    if available is not None and available < needed:
        promised = f" ({taken} more are reserved by other loads)" if taken else ""
        raise UnavailableError(f"{what} needs {needed} bytes and {path} has {available} bytes free{promised}")


class DiskSpace:
    """The reservations of this process in one place. They are promises to each other, not to other processes."""

    def __init__(self, path: Path, *, free: Callable[[Path], int | None] = free_bytes) -> None:
        self._path = path
        self._free = free
        self._lock = threading.Lock()
        self._reserved: dict[Path, int] = {}

    def reserve(self, directory: Path, size: int, *, what: str) -> None:
        """Promise ``size`` bytes to ``directory``, which may hold some already; ``UnavailableError`` without room."""
        with self._lock:
            taken = sum(self._outstanding(other) for other in self._reserved if other != directory)
            check_space(self._path, size, what=what, taken=taken, free=self._free(self._path))
            self._reserved[directory] = size

    def release(self, directory: Path) -> None:
        """Forget the promise; fine if there is none."""
        with self._lock:
            self._reserved.pop(directory, None)

    def _outstanding(self, directory: Path) -> int:
        return max(0, self._reserved[directory] - tree_size(directory))


_NAME: Final = re.compile(r"[0-9]+-[0-9a-f]{16}")
_ROOT_LOCK: Final = ".lock"
_ALIVE: Final = ".alive"
logger = logging.getLogger(__name__)


class ProcessDirectory:
    """The directory of this process below ``root``, mode 0700, until ``close``."""

    def __init__(self, root: Path, *, wipe: bool) -> None:
        """Create it. ``root`` must be a private directory; ``wipe`` is how :func:`remove_tree` removes it.
        ``UnavailableError`` if it cannot be created."""
        self._wipe = wipe
        self._pid = os.getpid()
        self.path = root / f"{self._pid}-{secrets.token_hex(8)}"
        self._alive = FileLock(self.path / _ALIVE)
        self._guards: list[int] = []
        try:
            with FileLock(root / _ROOT_LOCK).acquired():
                self.path.mkdir(mode=0o700)
                self._alive.acquire()
                self._guards = [_locked_directory(root, fcntl.LOCK_SH)]
                self._guards.append(_locked_directory(self.path, fcntl.LOCK_EX))
        except OSError as error:
            self._let_go()
            raise UnavailableError(f"cannot create a directory in {root}: {error.strerror}") from error

    @property
    def exists(self) -> bool:
        """Whether it is still there, and is the one that was made."""
        with contextlib.suppress(OSError):
            return os.path.samestat(os.stat(self.path), os.fstat(self._guards[-1]))
        return False

    @property
    def locks(self) -> list[int]:
        """The descriptors that keep it: a process that inherits them keeps it after this one has been killed."""
        return [self._alive.fileno(), *self._guards]

    def close(self) -> None:
        """Remove the directory, then let go of the lock; ``InternalError`` if something is left, which the next start
        tries again. Does nothing in a forked child."""
        if os.getpid() != self._pid or not self._alive.held:
            return
        try:
            remove_tree(self.path, wipe=self._wipe, keep=_ALIVE)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        while self._guards:
            os.close(self._guards.pop())
        self._alive.release()


def sweep(root: Path, *, wipe: bool) -> list[str]:
    """Remove what dead processes left in ``root`` and return the names removed.

    Names of another form are not ours and stay. What cannot be removed is logged and stays for the next start.
    """
    with FileLock(root / _ROOT_LOCK).acquired():
        names = [name for name in os.listdir(root) if _NAME.fullmatch(name)]
        dead = [(name, lock) for name in names if (lock := _claim(root / name)) is not None]
    # Their locks are ours now: no one else removes them, and no one waits for us.
    return [name for name, lock in dead if _remove_dead(root / name, lock, wipe)]


def _claim(directory: Path) -> FileLock | None:
    """The lock of ``directory`` if no one alive holds it."""
    lock = FileLock(directory / _ALIVE)
    try:
        if not stat.S_ISDIR(directory.lstat().st_mode) or _is_locked(directory):
            return None
        return lock if lock.try_acquire() else None
    except FileNotFoundError:  # its owner has just removed it
        return None
    except OSError as error:
        logger.warning("cannot look into %s, which a process left behind: %s", directory, error)
        return None


def _remove_dead(directory: Path, lock: FileLock, wipe: bool) -> bool:
    try:
        remove_tree(directory, wipe=wipe, keep=_ALIVE)
    except (RepoAgentError, OSError) as error:
        logger.warning("cannot remove %s, which a dead process left behind: %s", directory, error)
        return False
    finally:
        lock.release()
    return True


def _locked_directory(directory: Path, lock: int) -> int:
    """A descriptor of the directory, which is locked where the filesystem can do that."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, lock | fcntl.LOCK_NB)
    except OSError as error:  # not on every network filesystem; or a cleaner is at it
        logger.debug("cannot lock the directory %s: %s", directory, error)
    return fd


def _is_locked(directory: Path) -> bool:
    """Whether another process holds the lock of the directory; its ``.alive`` may have been cleaned away."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


class ProcessRoot:
    """This process's directory on the disk or in memory, made when first needed, and again when it was removed."""

    def __init__(self, root: Path, *, wipe: bool, free: Callable[[Path], int | None]) -> None:
        self.wipe = wipe
        self.root: Final = root
        self._free = free
        self._lock = threading.Lock()
        self._opened: tuple[ProcessDirectory, DiskSpace] | None = None
        self._lost: list[Path] = []
        self._complained = False

    def open(self) -> tuple[Path, DiskSpace]:
        """Where to put things and how much room there is. Raises ``InvalidArgumentError`` if others can write to the
        root, and ``UnavailableError`` if it has become unusable, or the directory cannot be created."""
        with self._lock:
            if self._opened is None:
                self._opened = self._made()
            elif not self._opened[0].exists:
                self._opened = self._made_again(self._opened[0])
            return self._opened[0].path, self._opened[1]

    @property
    def locks(self) -> list[int]:
        """As :attr:`ProcessDirectory.locks`; none if there is no directory."""
        with self._lock:
            return self._opened[0].locks if self._opened is not None else []

    def close(self) -> None:
        """Remove the directory, and what was written in the place of one that was lost; again is fine.

        A forked child removes nothing of its parent.
        """
        mine = f"{os.getpid()}-"
        with self._lock, contextlib.ExitStack() as stack:  # an error stops none of the others
            for path in self._lost:  # who writes a tree makes the directories above it, too
                if path.name.startswith(mine):
                    stack.callback(remove_tree, path, wipe=self.wipe)
            if self._opened is not None:
                stack.callback(self._opened[0].close)
            self._lost, self._opened = [], None

    def _made(self) -> tuple[ProcessDirectory, DiskSpace]:
        try:
            private_root(self.root, purpose="confidential workspace" if self.wipe else "workspace")
        except OSError as error:  # it went again in this moment
            raise UnavailableError(f"cannot create the directory {self.root}: {error.strerror}") from error
        directory = ProcessDirectory(self.root, wipe=self.wipe)
        return directory, DiskSpace(directory.path, free=self._free)

    def _made_again(self, lost: ProcessDirectory) -> tuple[ProcessDirectory, DiskSpace]:
        """What was in the lost one is gone: the models that serve from it may fail when they are used."""
        try:
            made = self._made()
        except (RepoAgentError, OSError) as error:
            if not self._complained:
                self._complained = True
                logger.error("something removed the workspace directory %s under this server: %s", lost.path, error)
            if isinstance(error, InvalidArgumentError):  # no caller can help it
                raise UnavailableError(f"the workspace was removed and cannot be made again: {error}") from error
            raise
        self._complained = False
        logger.warning(
            "something removed the workspace directory %s under this server; it is made again as %s. Keep cleaners "
            "away from it, or name another directory (REPOAGENT_WORKSPACE); load models again that fail",
            lost.path,
            made[0].path,
        )
        self._lost.append(lost.path)
        lost.close()
        return made


def sweep_root(root: Path, *, wipe: bool) -> None:
    """Remove what dead processes left in a private root."""
    removed = sweep(root, wipe=wipe)
    if removed:
        processes = "a dead process" if len(removed) == 1 else f"{len(removed)} dead processes"
        logger.info("removed what %s left in %s", processes, root)


def sweep_memory(root: Path) -> None:
    """Someone else's directory of our name in a place open to all must not stop a server that needs none."""
    try:
        sweep_root(private_root(root, purpose="confidential workspace"), wipe=True)
    except (RepoAgentError, OSError) as error:
        logger.warning("confidential workspaces are not available: %s", error)
