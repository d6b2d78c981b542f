"""The file of an audit log: whole lines appended one by one, by one process at a time."""

import errno
import fcntl
import logging
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from repoagent.audit.lines import BEGINNING, Head, LineError, Tail, digest, first_number, read_tail
from repoagent.errors import InvalidArgumentError, RepoAgentError, UnavailableError
from repoagent.storage.workspaces.locks import FileLock

logger = logging.getLogger(__name__)

_OPEN: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_MODE: Final = 0o600
_NOTE_BYTES: Final = 96
"""Room for both numbers: 15 digits, 64 and 14, with what is between them."""
_NOTE: Final = re.compile(rb"(0|[1-9][0-9]{0,14}) ([0-9a-f]{64})(?: ([1-9][0-9]{0,13}))?\n")


class AuditFile:
    """One chain of lines at ``path``. Not safe for threads: :class:`~repoagent.audit.log.AuditLog` has the lock.

    ``path.head`` beside it is the lock against other servers, and holds the head of the chain: a chain goes on when
    the file was renamed while no server ran. It also holds how many lines after the head could not be written: a full
    disk has room for that, and a kill cannot take it away. The file itself is locked, too: it may have other names.

    Args:
        path: Made if it does not exist.
        sync: Whether a line is on the disk, not only with the kernel, when :meth:`append` returns.
        largest: Bytes after which the file is renamed to ``path.N``, N the number of its first line; 0 is no limit.

    Raises:
        UnavailableError: another process writes this log, or the file cannot be opened.
        InvalidArgumentError: what is there is not an audit log.
    """

    def __init__(self, path: Path, *, sync: bool = True, largest: int = 0) -> None:
        self.path = path
        self._sync = sync
        self._largest = largest
        self._beside = path.with_name(f"{path.name}.head")
        self._lock = FileLock(self._beside)
        self.head = BEGINNING
        """The last line."""
        self._first = self._size = self._clean = 0
        self._stuck = False
        self.lost = 0
        """How many lines could not be written since the last one, also by servers before this one."""
        self._note = self._fd = -1
        if path.exists() and not path.is_file():
            raise _special(path)
        try:
            self._take_lock()
            self._fd = _opened(path)
            _claim(self._fd)
            self.found = self._recover()
        except BlockingIOError as error:
            self.close()
            raise _in_use(path, path) from error
        except (OSError, LineError) as error:
            self.close()
            raise _unusable(path, error) from error
        except BaseException:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    def append(self, make: Callable[[Head], bytes]) -> None:
        """Write the line that ``make`` makes for it; after an ``OSError`` the file is as it was, the line lost."""
        try:
            self._append(make)
        except OSError:
            self.lost += 1
            self._take_note()
            raise
        self.lost = 0
        self._take_note()

    def _append(self, make: Callable[[Head], bytes]) -> None:
        if self._fd < 0:
            raise OSError(errno.EBADF, "it is closed")
        self._look()
        if 0 < self._largest <= self._size:
            self._rotate()
        line = make(self.head)
        try:
            self._write(line)
            if self._sync:
                os.fdatasync(self._fd)
        except OSError:
            with suppress(OSError):  # else the next line does it
                self._cut()
            raise
        self._clean = self._size
        self.head = Head(self.head.seq + 1, digest(line))

    def reopen(self) -> bool:
        """Go on in a new file if this one has been renamed; False if nothing has changed.

        Raises ``OSError`` if the new file cannot be opened; the old one is still written to. What is at the path by
        then may be another server's (``UnavailableError``), or not an audit log (``InvalidArgumentError``).
        """
        fd = _opened(self.path)
        try:
            new, old = os.fstat(fd), os.fstat(self._fd)
            if (new.st_dev, new.st_ino) == (old.st_dev, old.st_ino):
                return False
            if new.st_size:
                raise InvalidArgumentError(
                    f"the audit log {self.path} was put in place by something else and is not empty; the former file "
                    "is still written to: move the new one away and send SIGHUP again"
                )
            _take_empty(fd, self.path)
            self._prepare(fd)
            self._go_on_in(fd)
            fd = -1
        finally:
            if fd >= 0:
                os.close(fd)
        return True

    def close(self) -> None:
        """Let go of the file and the lock."""
        for fd in (self._fd, self._note):
            if fd >= 0:
                os.close(fd)
        self._fd = self._note = -1
        self._lock.release()

    # -- opening --------------------------------------------------------------------------------------------------

    def _take_lock(self) -> None:
        if not self._lock.try_acquire():
            raise _in_use(self.path, self._beside)
        if self._note >= 0:
            os.close(self._note)
            self._note = -1
        self._note = os.open(self._beside, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)

    def _recover(self) -> tuple[Tail, Head]:
        """Take up the chain where an earlier server left it: what the file ends with, and what was noted of it."""
        tail = read_tail(self._fd)
        noted, self.lost = _read_note(self._note)
        self.head = tail.head or noted
        self._first = first_number(self._fd)
        self._clean = tail.size
        self._size = tail.size + len(tail.torn)
        return tail, noted

    # -- writing --------------------------------------------------------------------------------------------------

    def _write(self, line: bytes) -> None:
        left = memoryview(line)
        while left:
            written = os.write(self._fd, left)
            self._size += written
            left = left[written:]
        if not self._first:
            self._first = self.head.seq + 1

    def _look(self) -> None:
        """Remove what a write that failed left of a line, and note what others did to the file."""
        if self._size > self._clean:
            self._cut()
        status = os.fstat(self._fd)
        if not status.st_nlink:
            self._begin_again()
            return
        actual = status.st_size
        if actual != self._size:  # a reader of the log will find it; here it must only do no further harm
            self._size = self._clean = actual

    def _begin_again(self) -> None:
        """Go on in a new file at the path: this one was removed, perhaps with its directory."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock.release()
            self._take_lock()
            self.reopen()
        except RepoAgentError as error:
            raise OSError(errno.EEXIST, str(error)) from error
        logger.error(
            "the audit log %s was removed under this server: its lines up to %d are lost, and it goes on in a new file",
            self.path,
            self.head.seq,
        )

    def _cut(self) -> None:
        self._clean = min(self._clean, os.fstat(self._fd).st_size)
        os.ftruncate(self._fd, self._clean)
        self._size = self._clean

    def _take_note(self) -> None:
        lost = f" {self.lost}" if self.lost else ""
        with suppress(OSError):  # it serves only those who come after this server
            os.pwrite(self._note, f"{self.head}{lost}\n".ljust(_NOTE_BYTES).encode(), 0)

    # -- rotation -------------------------------------------------------------------------------------------------

    def _rotate(self) -> None:
        """Go on in a new file, which takes the place of this one in one step; if that fails, nothing has changed."""
        former = self.path.with_name(f"{self.path.name}.{self._first:012d}")
        fresh = self.path.with_name(f"{self.path.name}.new")
        try:
            fd = _opened(fresh)
            try:
                _take_empty(fd, fresh)
                self._replace(fd, fresh, former)
            except BaseException:
                os.close(fd)
                raise
        except (OSError, RepoAgentError) as error:
            if not self._stuck:
                logger.error("the audit log %s grows beyond its size: %s: %s", self.path, former, error)
            self._stuck = True
        else:
            self._stuck = False
            self._go_on_in(fd)

    def _replace(self, fd: int, fresh: Path, former: Path) -> None:
        """Name this file ``former``, and give its name to ``fresh``, which is ours: it goes if that fails."""
        try:
            self._prepare(fd)
            with _directory(self.path) as directory:
                self._name_again(former)
                os.rename(fresh, self.path)
                with suppress(OSError):  # It is done; a disk that fails here fails the lines, too.
                    os.fsync(directory)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise

    def _name_again(self, former: Path) -> None:
        try:
            os.link(self.path, former)
        except FileExistsError:  # Nothing is overwritten; but a server that was killed here may have come so far.
            if not former.samefile(self.path):
                raise

    def _prepare(self, fd: int) -> None:
        """What may fail with an OSError before the log goes on in ``fd``."""
        os.fsync(self._fd)
        os.fchmod(fd, stat.S_IMODE(os.fstat(self._fd).st_mode))

    def _go_on_in(self, fd: int) -> None:
        os.close(self._fd)
        self._fd = fd
        self._size = self._clean = self._first = 0


def noted_losses(path: Path, head: Head) -> int:
    """How many lines after ``head`` its server could not write, as noted beside the log at ``path``."""
    try:
        fd = os.open(path.with_name(f"{path.name}.head"), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return 0
    try:
        noted, lost = _read_note(fd)
    except OSError:
        return 0
    finally:
        os.close(fd)
    return lost if noted == head else 0


def _opened(path: Path) -> int:
    """The file at ``path``, and its name on the disk; raises ``InvalidArgumentError`` for a device or a pipe."""
    fd = os.open(path, _OPEN, _MODE)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _special(path)
        with _directory(path) as directory:
            os.fsync(directory)
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextmanager
def _directory(path: Path) -> Iterator[int]:
    """A descriptor of the directory that ``path`` is in."""
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _claim(fd: int) -> None:
    """Keep other servers from the file ``fd``, whatever name they open it by; ``BlockingIOError`` if one has it."""
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _take_empty(fd: int, path: Path) -> None:
    """Keep other servers from the file ``fd`` at ``path``. Raises ``UnavailableError`` if one of them writes it, and
    ``InvalidArgumentError`` unless it is empty."""
    try:
        _claim(fd)
    except BlockingIOError as error:
        raise _in_use(path, path) from error
    if os.fstat(fd).st_size:
        raise InvalidArgumentError(f"{path} is not empty: move it away")


def _in_use(path: Path, lock: Path) -> UnavailableError:
    return UnavailableError(
        f"the audit log {path} is in use by another server, which holds the lock {lock}; give each server an audit log "
        "of its own"
    )


def _special(path: Path) -> InvalidArgumentError:
    return InvalidArgumentError(f"the audit log {path} must be a file: the chain goes on from its last line")


def _read_note(fd: int) -> tuple[Head, int]:
    """The head that the last server noted, and how many lines it lost after it; the beginning if there is none."""
    found = _NOTE.match(os.pread(fd, _NOTE_BYTES, 0))
    return (Head(int(found[1]), found[2].decode()), int(found[3] or 0)) if found is not None else (BEGINNING, 0)


def _unusable(path: Path, error: OSError | LineError) -> Exception:
    if isinstance(error, OSError):
        return UnavailableError(f"the audit log {path} cannot be opened: {error.strerror}")
    return InvalidArgumentError(
        f"the audit log {path} does not end with a line of an audit log: {error}; look at it with 'repoagent audit "
        "verify', and move it away to begin another"
    )
