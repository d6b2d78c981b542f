"""Bringing a directory of any filesystem to this machine: parallel, in ranges, checked, all or nothing."""

import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from repoagent.errors import AlreadyExistsError, CancelledError, UnavailableError
from repoagent.storage.paths.faults import full_disk, storage_faults
from repoagent.storage.paths.paths import check_tree, join_inside
from repoagent.storage.paths.trees import remove_tree
from repoagent.storage.repositories.fingerprint import FileEntry, fingerprint_of
from repoagent.storage.repositories.listing import list_files
from repoagent.storage.transfer.parts import Part, parts_of
from repoagent.storage.workspaces.disk_space import check_space, free_bytes

__all__ = ["Cancelled", "Progress", "localize"]

Progress = Callable[[int, int], None]
"""Called with the bytes that are here and the bytes of all; from worker threads, never two at once."""
Cancelled = Callable[[], bool]
"""Asked between parts; true gives the work up."""

_ATTEMPTS: Final = 5
_FIRST_PAUSE: Final = 0.1
logger = logging.getLogger(__name__)


def localize(
    source_fs: Any,
    root: str,
    target: Path,
    *,
    workers: int = 8,
    progress: Progress | None = None,
    cancelled: Cancelled | None = None,
    entries: Sequence[FileEntry] | None = None,
) -> None:
    """Copy all files below ``root`` of ``source_fs`` to ``target``, which must be missing or an empty directory.

    The copy is made beside ``target`` and renamed, so ``target`` is complete or as it was. Big files come in ranges;
    a range that fails is fetched again, up to five times, and what has arrived is kept. Every size is checked, and
    at the end the source is listed again: a model that changed meanwhile is refused, for it may be half old.

    Args:
        source_fs: Any fsspec filesystem, synchronous side. Its own threads are not needed.
        root: A directory of it.
        target: On a local disk or tmpfs; its parent must exist.
        workers: Parts fetched at once; each holds up to 8 MiB.
        progress: See :data:`Progress`.
        cancelled: See :data:`Cancelled`.
        entries: The listing to go by, if the caller has just made one.

    Raises:
        UnsafePathError: a name would leave ``target``, or two names exclude each other.
        NotFoundError: there is no ``root``.
        UnavailableError: too little room, the source does not answer, or it changed meanwhile.
        AlreadyExistsError: ``target`` is not empty.
        CancelledError: ``cancelled()`` became true.
    """
    if target.exists() and any(target.iterdir()):
        raise AlreadyExistsError(f"cannot copy {root} to {target}: it is not empty")
    with storage_faults("list", root):
        wanted = list_files(source_fs, root) if entries is None else sorted(entries)
    check_tree(entry.path for entry in wanted)
    total = sum(entry.size or 0 for entry in wanted)
    check_space(target.parent, total, what=f"the copy of {root}", free=free_bytes(target.parent))
    with _beside(target) as partial, full_disk(str(target.parent), total):
        _make_files(partial, wanted)
        _Copy(source_fs, partial, total, progress, cancelled).run(wanted, workers)
        _check_sizes(partial, wanted)
        with storage_faults("list", root):
            _check_unchanged(root, wanted, list_files(source_fs, root))
        partial.rename(target)


class _Copy:
    """One run over all parts, on a pool of threads."""

    def __init__(
        self, fs: Any, target: Path, total: int, progress: Progress | None, cancelled: Cancelled | None
    ) -> None:
        self._fs = fs
        self._target = target
        self._total = total
        self._progress = progress
        self._cancelled = cancelled
        self._done = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def run(self, entries: Sequence[FileEntry], workers: int) -> None:
        # Not every HTTP server honours ranges, and one that does not sends the whole file each time.
        parts = parts_of(entries, ranges="http" not in self._fs.protocol)
        with ThreadPoolExecutor(workers, thread_name_prefix="localize") as pool:
            try:
                _wait([pool.submit(self._fetch, part) for part in parts])
            except BaseException:
                self._stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _fetch(self, part: Part) -> None:
        path = join_inside(self._target, part.entry.path)
        content = self._read_patiently(part, path)
        if content is not None:
            _write(path, part.start, content)
        self._count(part.end - part.start if part.end is not None else path.stat().st_size)

    def _read_patiently(self, part: Part, path: Path) -> bytes | None:
        pause = _FIRST_PAUSE
        for attempt in range(1, _ATTEMPTS):
            self._check_cancelled()
            try:
                return self._read(part, path)
            except (FileNotFoundError, PermissionError) as error:
                raise _unreadable(part, error, attempt) from error
            except Exception as error:  # filesystem packages have no common base for what is worth another try
                logger.info("attempt %d to read %s failed: %s", attempt, part.entry.name, error)
                self._stop.wait(pause)
                pause *= 2
        self._check_cancelled()
        try:
            return self._read(part, path)
        except Exception as error:
            raise _unreadable(part, error, _ATTEMPTS) from error

    def _read(self, part: Part, path: Path) -> bytes | None:
        """The bytes of the part; None if the filesystem wrote the whole file itself."""
        if part.end is None:
            self._fs.get_file(part.entry.name, str(path))
            return None
        content: bytes = self._fs.cat_file(part.entry.name, start=part.start, end=part.end)
        if len(content) != part.end - part.start:
            raise OSError(f"{len(content)} bytes came for the range {part.start}-{part.end}")
        return content

    def _check_cancelled(self) -> None:
        if self._stop.is_set() or (self._cancelled is not None and self._cancelled()):
            raise CancelledError("cancelled while copying the model")

    def _count(self, size: int) -> None:
        with self._lock:
            self._done += size
            if self._progress is not None:
                self._progress(self._done, self._total)


def _wait(futures: Sequence[Future[None]]) -> None:
    """Return when all are done; raise the first error as soon as there is one."""
    done, _ = wait(futures, return_when=FIRST_EXCEPTION)
    for future in done:
        future.result()


def _unreadable(part: Part, error: Exception, attempts: int) -> UnavailableError:
    return UnavailableError(f"cannot read {part.entry.name} (attempt {attempts}): {type(error).__name__}: {error}")


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    partial = target.parent / f".{target.name[:100]}.{secrets.token_hex(8)}.partial"
    partial.mkdir(mode=0o700)
    try:
        yield partial
    finally:
        remove_tree(partial)  # nothing to remove once it was renamed


def _make_files(directory: Path, entries: Sequence[FileEntry]) -> None:
    for entry in entries:
        path = join_inside(directory, entry.path)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _write(path: Path, start: int, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        rest = memoryview(content)
        while rest:
            count = os.pwrite(fd, rest, start)
            start += count
            rest = rest[count:]
    finally:
        os.close(fd)


def _check_sizes(directory: Path, entries: Sequence[FileEntry]) -> None:
    for entry in entries:
        size = join_inside(directory, entry.path).stat().st_size
        if entry.size is not None and size != entry.size:
            raise UnavailableError(f"{entry.name} arrived with {size} bytes, expected {entry.size}")


def _check_unchanged(root: str, before: Sequence[FileEntry], after: Sequence[FileEntry]) -> None:
    if fingerprint_of(before) != fingerprint_of(after):
        changed = sorted({entry.path for entry in set(before) ^ set(after)})
        raise UnavailableError(f"{root} changed while it was copied ({', '.join(changed[:3])}); load it again")
