"""Digests that are computed once, and kept for as long as the file is the one that was hashed.

A digest is kept under the state of its file: device, number, size and the times of its last changes, which the kernel
sets. So it does not matter what a file is called, and one that was written to, linked, renamed or replaced has none.
What the times cannot show is looked for: a program that has the file open for writing may have it mapped, too.

One change stays unseen: through a mapping of a file in memory (tmpfs) that was made and closed between two looks.
Therefore only files of private directories are looked up, and agents may not write to a location that they handed on.
"""

import errno
import fcntl
import os
import signal
import stat
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from repoagent.beneath.digests import digest_files
from repoagent.beneath.opening import open_beneath
from repoagent.beneath.unchanged import FileState, file_state, wait_for_clock
from repoagent.errors import UnsafePathError

_Digests = dict[str, str]


class KeptDigests:
    """The digests of the files of one load, in directories that are ``is_private``: no one else writes to these.
    Thread-safe."""

    def __init__(self, is_private: Callable[[Path], bool]) -> None:
        self._is_private = is_private
        self._lock = threading.Lock()
        self._known: dict[FileState, _Digests] = {}
        self._latest = 0

    def keep(self, status: os.stat_result, digests: Mapping[str, str]) -> None:
        """The file that had ``status`` after its last byte was written has ``digests``, by algorithm."""
        with self._lock:
            self._known.setdefault(file_state(status), {}).update(digests)
            self._latest = max(self._latest, status.st_ctime_ns)

    def keep_steady(self, root: Path, path: str, state: FileState, digests: Mapping[str, str]) -> None:
        """Keep ``digests`` of a file that had ``state``, unless someone has it mapped and can write unseen."""
        with suppress(OSError, UnsafePathError), open_beneath(root, path, follow=False) as file:
            status = os.fstat(file.fileno())
            if file_state(status) == state and not _may_change(file.fileno(), status):
                self.keep(status, digests)

    def settle(self) -> None:
        """Wait, for a step of the kernel's clock at most, so that each later change shows in the state of its file.

        Call it before the files that were kept since are given to others.
        """
        if self._latest and not wait_for_clock(self._latest):
            with self._lock:
                self._known.clear()
        self._latest = 0

    def digests(
        self,
        root: Path,
        files: Mapping[str, Sequence[str]],
        *,
        follow: bool = False,
        cancelled: Callable[[], bool] = lambda: False,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> tuple[dict[str, _Digests], int]:
        """The digests of ``files`` beneath ``root``, and how many bytes were read for them.

        Arguments and errors as in :func:`repoagent.beneath.digests.digest_files`.
        """
        private = self._is_private(root.resolve())
        known = {path: self._known_of(root, path) for path in files} if private else {}
        left = {
            path: missing
            for path, wanted in files.items()
            if (missing := [name for name in wanted if name not in known.get(path, ())])
        }
        steady: dict[str, FileState] = {}
        read = [0]

        def count(done: int, total: int) -> None:
            read[0] = done
            progress(done, total)

        computed = digest_files(
            root, left, follow=follow, cancelled=cancelled, progress=count, steady=steady if private else None
        )
        for path, state in steady.items():
            self.keep_steady(root, path, state, computed[path])
        found = {path: {**known.get(path, {}), **computed.get(path, {})} for path in files}
        return {path: {name: found[path][name] for name in wanted} for path, wanted in files.items()}, read[0]

    def _known_of(self, root: Path, path: str) -> _Digests:
        """What is known of a file by its state now; nothing of one that could change unseen."""
        try:
            with open_beneath(root, path, follow=False) as file:
                status = os.fstat(file.fileno())
                with self._lock:
                    known = dict(self._known.get(file_state(status), {}))
                return known if known and not _may_change(file.fileno(), status) else {}
        except (OSError, UnsafePathError):  # Hashing it raises the reason, or follows the link.
            return {}


def _may_change(fd: int, status: os.stat_result) -> bool:
    """Whether a second name, or a program that has it open, could change the file."""
    writable = status.st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)
    return (status.st_nlink > 1 and bool(writable)) or _open_for_writing(fd)


def _open_for_writing(fd: int) -> bool:
    """Whether any program has the file open for writing, or mapped; true where the filesystem cannot answer."""
    try:
        # A lease to read is given only if no one writes. Who wants to in this moment waits; its signal is ignored.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EINVAL, errno.EACCES, errno.EPERM, errno.ENOTSUP):
            return True
        raise
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False
