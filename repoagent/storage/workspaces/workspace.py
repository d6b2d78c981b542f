"""Private directories for loads, on disk and in memory, removed for sure."""

import ctypes
import itertools
import logging
import os
import resource
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from repoagent.errors import InvalidArgumentError, RepoAgentError, UnavailableError, UnsupportedError
from repoagent.public_text import hide
from repoagent.storage.paths.names import check_model_name, file_label
from repoagent.storage.paths.trees import remove_tree
from repoagent.storage.workspaces import workspace
from repoagent.storage.workspaces.private import default_workspace_path, private_root
from repoagent.storage.workspaces.process_dir import DiskSpace, ProcessRoot, free_bytes, sweep_memory, sweep_root

PROC: Final = Path("/proc")
_MEMORY: Final = frozenset({"tmpfs", "ramfs"})


@dataclass(frozen=True, slots=True)
class _Mount:
    kind: str
    options: frozenset[str]


def check_memory_only(directory: Path, *, allow_swap: bool = False, proc: Path = PROC) -> None:
    """Check that files in ``directory``, on a tmpfs or ramfs, never reach a disk; ``proc`` is where procfs is mounted.

    ``allow_swap``: the operator accepts that the kernel may swap tmpfs pages out (its swap is encrypted, for example).
    Raises ``UnsupportedError`` for another filesystem, and ``UnavailableError`` if swap is on, or may be.
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
    """The devices and files that memory may be swapped to; raises ``UnavailableError`` if procfs does not show it."""
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


_SET_DUMPABLE: Final = 4
_lock: Final = threading.Lock()
_forbidden: Final = threading.Event()
logger = logging.getLogger(__name__)


def forbid_core_dumps() -> None:
    """Let the kernel write no core dump of this process from now on; again is fine.

    The limit alone would not do: a handler in ``core_pattern`` is given the memory whatever the limit states. A process
    that cannot be dumped cannot be looked into by a debugger of the same user, either. Programs that it starts inherit
    the limit.
    """
    with _lock:
        if _forbidden.is_set():
            return
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if ctypes.CDLL(None, use_errno=True).prctl(_SET_DUMPABLE, 0, 0, 0, 0):
            logger.warning("core dumps cannot be switched off: %s", os.strerror(ctypes.get_errno()))
        _forbidden.set()


_PRIVATE_NAMES: Final = 4
"""A process, a load, a label, the model."""
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - checked to be a tmpfs; our directory in it is private


class WorkspaceRoot:
    """Where a process keeps its workspaces. Making one removes what dead processes left; several may live at once.

    Thread-safe. Close it, or use it as a context manager: everything in it goes.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        confidential_dir: Path | None = None,
        allow_swap: bool = False,
        allow_core_dumps: bool = False,
        free: Callable[[Path], int | None] = free_bytes,
        proc: Path = workspace.PROC,
    ) -> None:
        """Check and clean the roots; nothing is acquired yet.

        Args:
            path: Root on disk; by default that of :func:`default_workspace_path`.
            confidential_dir: A memory filesystem (``/dev/shm`` by default); the root is ``repoagent-<uid>`` in it.
            allow_swap: Hand out confidential directories although swap is on.
            allow_core_dumps: Let the kernel write core dumps after a confidential directory was handed out.
            free: How to ask for the free bytes of a place.
            proc: Where procfs is mounted.

        Raises:
            InvalidArgumentError: ``path`` is another user's, or others can write to it.
            UnavailableError: ``path`` cannot be created.
        """
        disk = path.resolve() if path is not None else default_workspace_path(os.environ)
        disk = disk.parent.resolve() / disk.name  # a default root that is a link is refused below
        self._memory_dir = (confidential_dir or _SHARED_MEMORY).resolve()
        memory = self._memory_dir / f"repoagent-{os.geteuid()}"
        hide(disk, "workspace", depth=_PRIVATE_NAMES)
        hide(memory, "workspace", depth=_PRIVATE_NAMES)
        self._allow_swap = allow_swap
        self._allow_core_dumps = allow_core_dumps
        self._proc = proc
        self._disk = ProcessRoot(disk, wipe=False, free=free)
        self._memory = ProcessRoot(memory, wipe=True, free=free)
        self._lock = threading.Lock()
        self._serial = itertools.count(1)
        self._workspaces: dict[int, Workspace] = {}
        self._closed = False
        sweep_root(private_root(disk, purpose="workspace"), wipe=False)
        if memory.exists():
            sweep_memory(memory)

    def __enter__(self) -> "WorkspaceRoot":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def new(self, name: str) -> "Workspace":
        """A workspace for one load of the model ``name``, unless the root is closed. Nothing is on disk before
        :meth:`Workspace.directory`."""
        with self._lock:
            if self._closed:
                raise UnavailableError("no new workspace: the workspace root is closed")
            serial = next(self._serial)
            workspace = Workspace(self, serial, name)
            self._workspaces[serial] = workspace
            return workspace

    @property
    def fault(self) -> str | None:
        """Why no load can have a directory on the disk now; one that was removed is made again first."""
        with self._lock:
            try:
                if not self._closed:
                    self._disk.open()
            except (RepoAgentError, OSError) as error:
                return str(error)
            return None

    @property
    def roots(self) -> tuple[Path, Path]:
        """Where the workspaces of all processes of this user are: on the disk, and in memory."""
        return self._disk.root, self._memory.root

    @property
    def locks(self) -> list[int]:
        """Descriptors: the next start removes nothing of this process while one that inherited them lives."""
        return [*self._disk.locks, *self._memory.locks]

    def is_plaintext(self, path: Path) -> bool:
        """Whether ``path`` lies where confidential directories of this user are, of whichever process."""
        memory = self._memory_dir / f"repoagent-{os.geteuid()}"
        return path.resolve().is_relative_to(memory.resolve())

    def close(self) -> None:
        """Remove every workspace and this process's directories; again is fine. ``InternalError`` if something could
        not be removed; the rest is gone."""
        with self._lock:
            self._closed = True
            workspaces = list(self._workspaces.values())
        with ExitStack() as stack:  # what was pushed last goes first, and an error stops none of the others
            stack.callback(self._disk.close)
            stack.callback(self._memory.close)
            for workspace in workspaces:
                stack.callback(workspace.close)

    def _place(self, confidential: bool) -> ProcessRoot:
        if not confidential:
            return self._disk
        workspace.check_memory_only(self._memory_dir, allow_swap=self._allow_swap, proc=self._proc)
        if not self._allow_core_dumps:
            forbid_core_dumps()
        return self._memory

    def _forget(self, serial: int) -> None:
        with self._lock:
            self._workspaces.pop(serial, None)


@dataclass(frozen=True, slots=True)
class _Given:
    """A directory that was handed out."""

    path: Path
    room: DiskSpace
    place: ProcessRoot


class Workspace:
    """The private directories of one load, mode 0700 each. Use it as a context manager or call :meth:`close`."""

    def __init__(self, root: WorkspaceRoot, serial: int, model: str) -> None:
        self._root = root
        self._serial = serial
        self._model = _directory_name(model)
        self._count = itertools.count(1)
        self._lock = threading.Lock()
        self._given: dict[str, _Given] = {}
        self._bases: dict[Path, ProcessRoot] = {}
        self._closed = False
        self.confidential = False
        """Whether a confidential directory was handed out; every later one is confidential too."""

    def __enter__(self) -> "Workspace":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def keep_in_memory(self) -> None:
        """Make every later directory confidential: what is loaded is plaintext already."""
        with self._lock:
            self.confidential = True

    def directory(self, label: str, *, confidential: bool = False, size_hint: int | None = None) -> Path:
        """Return the directory called ``label``, made empty when first asked for.

        It has the name of the model, and is the only entry of its parent directory.

        Args:
            label: Any text, such as the agent's name; it shows in the path.
            confidential: In memory, never on a disk. Once true for a workspace, it stays true.
            size_hint: The bytes that will be written: reserved against other loads of this process.

        Raises:
            UnavailableError: less room than ``size_hint``, swap is on, or the workspace is closed.
            UnsupportedError: confidential, and this machine has no memory filesystem.
            InvalidArgumentError: ``label`` was handed out on disk before and is wanted confidential now.
        """
        with self._lock:
            if self._closed:
                raise UnavailableError("the workspace is closed")
            given = self._given.get(label)
            if given is None:
                given = self._make(label, confidential or self.confidential)
            elif confidential and not given.place.wipe:
                raise InvalidArgumentError(f"the directory '{label}' is on disk already; ask for it confidential first")
            self._reserve(label, given, size_hint)
            self._given[label] = given
            self.confidential |= given.place.wipe
            return given.path

    def holds(self, path: Path) -> bool:
        """Whether ``path`` is a directory that was handed out, or lies in one."""
        with self._lock:
            return any(path.is_relative_to(given.path) for given in self._given.values())

    def remove(self, path: Path) -> None:
        """Remove one directory that :meth:`directory` returned; its label gives a new one then.

        Raises:
            InvalidArgumentError: ``path`` is none of them.
            InternalError: something is left in it.
        """
        if not self._remove(lambda given: given.path == path):
            raise InvalidArgumentError("not a directory of this workspace, or removed already")

    def remove_others(self, place: Path) -> None:
        """Remove the directories in which ``place`` does not lie."""
        self._remove(lambda given: not place.is_relative_to(given.path))

    def remove_confidential(self) -> None:
        """Wipe and remove the confidential directories."""
        self._remove(lambda given: given.place.wipe)

    def unlink(self) -> None:
        """Remove all directories, and truncate no file: a process that has one mapped goes on reading it."""
        self._remove(lambda _given: True, wipe=False)

    def _remove(self, chosen: Callable[[_Given], bool], *, wipe: bool = True) -> int:
        """Remove the chosen directories; how many there were."""
        with self._lock:
            labels = [label for label, given in self._given.items() if chosen(given)]
            for label in labels:
                self._drop(self._given.pop(label), wipe=wipe)
            return len(labels)

    def close(self) -> None:
        """Remove everything, confidential directories first; again is fine. ``InternalError`` if something could not be
        removed: the next start tries again."""
        with self._lock:
            self._closed = True
            self._root._forget(self._serial)
            bases = sorted(self._bases.items(), key=lambda item: item[1].wipe)
            given = list(self._given.values())
            self._bases.clear()
            self._given.clear()
            with ExitStack() as stack:
                for base, place in bases:
                    stack.callback(remove_tree, base, wipe=place.wipe)
                for one in given:
                    one.room.release(one.path)

    def _make(self, label: str, confidential: bool) -> _Given:
        place = self._root._place(confidential)
        process_directory, room = place.open()
        base = process_directory / str(self._serial)
        path = base / f"{next(self._count)}-{file_label(label)}" / self._model
        try:
            base.mkdir(mode=0o700, exist_ok=True)
            self._bases[base] = place
            path.parent.mkdir(mode=0o700)
            path.mkdir(mode=0o700)
        except OSError as error:
            raise UnavailableError(f"cannot create a workspace directory: {error.strerror}") from error
        return _Given(path, room, place)

    def _reserve(self, label: str, given: _Given, size: int | None) -> None:
        if size is None:
            return
        try:
            given.room.reserve(given.path, size, what=f"'{label}'")
        except UnavailableError:
            if label not in self._given:
                self._drop(given)
            raise

    @staticmethod
    def _drop(given: _Given, *, wipe: bool = True) -> None:
        given.room.release(given.path)
        remove_tree(given.path.parent, wipe=wipe and given.place.wipe)


def _directory_name(model: str) -> str:
    """The name of the model, by which other servers call what lies in a directory; else one that resembles it."""
    try:
        return check_model_name(model)
    except RepoAgentError:
        return file_label(model)
