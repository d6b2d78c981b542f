"""The directory that another server reads: it gets the files of one model, all of them or none."""

import logging
import os
import stat
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from repoagent.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    RepoAgentError,
    UnavailableError,
    UnsafePathError,
    UnsupportedError,
)
from repoagent.loader.chain import LoadedChain
from repoagent.storage.paths.trees import remove_tree
from repoagent.storage.transfer.snapshot import snapshot
from repoagent.storage.workspaces.locks import FileLock
from repoagent.storage.workspaces.private import check_parents
from repoagent.storage.workspaces.process_dir import sweep
from repoagent.storage.workspaces.workspace import check_memory_only

logger = logging.getLogger(__name__)

_MARK: Final = ".repoagent-prepared"
"""While it is there, everything beside it is ours to remove; it is locked while a process works here."""
_STAGE: Final = ".repoagent-stage"
_NOT_OURS: Final = frozenset({"lost+found"})
"""What a filesystem itself has at its top; it stays, so no model may have it."""


class Destination:
    """The directory ``path``, emptied when its block begins, and again when the block fails.

    Whatever is done goes through one descriptor of it, so another directory in its place gets nothing. After a kill
    the next block over the same directory removes what the last one left.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._moved: LoadedChain | None = None
        self._opened = ExitStack()

    def __enter__(self) -> "Destination":
        """Make the directory if need be, and empty it.

        Raises:
            AlreadyExistsError: it holds files that no earlier block put there.
            UnavailableError: another process is at it, or has a model in a private directory in it.
            UnsafePathError: it is not a directory.
            InvalidArgumentError: it belongs to another user, who could change what is put there.
        """
        made = not self.path.exists()
        check_parents(self.path / _MARK, purpose="model's file")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if made:
                os.fchmod(self._fd, 0o755)  # whatever the umask
        except (FileExistsError, NotADirectoryError):
            raise UnsafePathError(f"{self.path} is not a directory") from None
        with ExitStack() as opened:
            opened.callback(os.close, self._fd)
            if made:  # where all may write, another user may have made it first
                check_parents(self.path / _MARK, purpose="model's file")
            names = set(os.listdir(self._fd)) - _NOT_OURS
            if names and _MARK not in names:
                raise AlreadyExistsError(
                    f"{self.path} holds files that were not put there by this command, such as '{min(names)}'; name a "
                    "directory that is empty or does not exist"
                )
            lock = FileLock(self._held / _MARK)
            if not lock.try_acquire():
                raise UnavailableError(f"another process prepares a model in {self.path}; wait for its end")
            opened.callback(lock.release)
            if not self._remove_workspace():
                raise UnavailableError(f"another process has a model in {self.path / self._workspace_name}")
            self._clear()
            self._opened = opened.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._opened:
            alone = self._remove_workspace()
            if kind is None:
                return
            self._clear()
            if alone:
                with suppress(FileNotFoundError):
                    os.unlink(_MARK, dir_fd=self._fd)

    @property
    def _held(self) -> Path:
        return Path(f"/proc/self/fd/{self._fd}")

    @property
    def in_memory(self) -> bool:
        """Whether it lies on a memory filesystem, if perhaps on one that may be swapped."""
        try:
            check_memory_only(self.path)
        except UnsupportedError:
            return False
        except RepoAgentError:
            return True
        return True

    def stage(
        self, chain: LoadedChain, *, allow_disk: bool = False, cancelled: Callable[[], bool] | None = None
    ) -> None:
        """Bring the result of ``chain`` beside its place, readable for every user.

        Plaintext that was made on this filesystem is moved, so that there is one copy of it.

        Raises:
            UnsupportedError: it is confidential, and this is a disk.
            UnsafePathError: there is a link or a special file in it, or a name that this command needs.
            UnavailableError: the filesystem is full.
            CancelledError: ``cancelled()`` became true while it was copied.
        """
        place, stage = Path(chain.files.local_path()), self._held / _STAGE
        if chain.files.fleeting and not (allow_disk or self.in_memory):
            raise UnsupportedError(
                f"the result is confidential, and {self.path} is on a disk; mount a memory filesystem there (in "
                "Kubernetes an emptyDir with 'medium: Memory'), or allow it with --allow-disk"
            )
        if chain.files.fleeting and place.stat().st_dev == os.fstat(self._fd).st_dev:
            os.rename(place, stage)
            chain.relocate(stage)
            self._moved = chain
        else:
            try:
                snapshot(place, stage, cancelled=cancelled)
            except (OSError, UnavailableError) as error:
                raise UnavailableError(str(error).replace(str(self._held), str(self.path))) from error
        names = {_MARK, _STAGE, self._workspace_name, *_NOT_OURS}.intersection(os.listdir(stage))
        if names:
            raise UnsafePathError(f"the model has a file '{min(names)}', which this command needs; rename it")
        _open_to_everyone(stage)

    def publish(self) -> None:
        """Put what was staged into its place; ``InvalidArgumentError`` if another directory has the path by now."""
        stage = os.open(_STAGE, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._fd)
        try:
            for name in sorted(os.listdir(stage)):
                os.rename(name, name, src_dir_fd=stage, dst_dir_fd=self._fd)
        finally:
            os.close(stage)
        os.rmdir(_STAGE, dir_fd=self._fd)
        if not os.path.samestat(os.stat(self.path), os.fstat(self._fd)):
            raise InvalidArgumentError(f"{self.path} was replaced by another directory meanwhile; nothing is there")
        if self._moved is not None:
            self._moved.relocate(self.path)

    @property
    def _workspace_name(self) -> str:
        """The root of the private directories that a loader makes here."""
        return f"repoagent-{os.geteuid()}"

    def _clear(self) -> None:
        """Remove everything but the mark and private directories; what a server may have mapped is not truncated."""
        kept = {_MARK, self._workspace_name, *_NOT_OURS}
        for entry in [entry for entry in self._held.iterdir() if entry.name not in kept]:
            if entry.is_dir() and not entry.is_symlink():
                remove_tree(entry)
            else:
                entry.unlink()

    def _remove_workspace(self) -> bool:
        """Wipe the private directories that loaders made here; False if one of them still lives."""
        root = self._held / self._workspace_name
        if root.is_symlink() or not root.is_dir():
            root.unlink(missing_ok=True)
            return True
        sweep(root, wipe=True)
        if any(entry.is_dir() for entry in root.iterdir()):
            return False
        remove_tree(root, wipe=True)
        return True


def _open_to_everyone(root: Path) -> None:
    """The server that reads it may have another user; the private directories of a loader have mode 0700."""
    os.chmod(root, 0o755)  # noqa: S103 - what a model server reads is no secret of its user
    for directory, names, files, fd in os.fwalk(root):
        for name in (*names, *files):
            mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
            if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                where = os.path.relpath(os.path.join(directory, name), root)
                raise UnsafePathError(f"'{where}' is a link or a special file; another server may follow it elsewhere")
            os.chmod(name, 0o755 if stat.S_ISDIR(mode) or mode & stat.S_IXUSR else 0o444, dir_fd=fd)
