"""Bringing a directory of any filesystem to this machine: parallel, in ranges, checked, all or nothing."""

import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Final

from repoagent.errors import AlreadyExistsError, UnavailableError, full_disk, storage_faults
from repoagent.storage.paths.names import check_tree, join_inside
from repoagent.storage.paths.trees import remove_tree
from repoagent.storage.repositories.listing import FileEntry, fingerprint_of, list_files
from repoagent.storage.transfer.download_file import download_file
from repoagent.storage.transfer.partial_file import PartialFile
from repoagent.storage.transfer.streams import DownloadContext, RemoteFile, remote_files
from repoagent.storage.workspaces.process_dir import check_space, free_bytes

WORKERS: Final = 8
"""Requests at once, and files at once."""
Progress = Callable[[int, int], None]
"""Called with the bytes that are here and the bytes of all; from worker threads, never two at once."""
Cancelled = Callable[[], bool]
"""Asked between parts; true gives the work up."""
Place = Callable[[RemoteFile, Path, DownloadContext], tuple[str, int]]
"""Puts one file at a path, and returns its SHA-256 and its size."""


def download_files(
    files: Sequence[RemoteFile],
    target: Path,
    place: Place,
    *,
    workers: int = WORKERS,
    progress: Progress | None = None,
    cancelled: Cancelled | None = None,
) -> dict[str, tuple[str, int]]:
    """Put every file below the directory ``target``; path -> SHA-256 and size.

    Raises:
        UnsafePathError: a name would leave ``target``, or two names exclude each other.
        CancelledError: ``cancelled()`` became true.
        RepoAgentError: the first error of ``place``.
    """
    check_tree(file.path for file in files)
    context = DownloadContext(workers, count=_counter(files, progress), cancelled=cancelled)
    for directory in sorted({str(Path(file.path).parent) for file in files}):
        (target / directory).mkdir(mode=0o700, parents=True, exist_ok=True)
    with ThreadPoolExecutor(workers, thread_name_prefix="repoagent-download") as pool:
        try:
            futures = [pool.submit(_one, file, target, place, context) for file in files]
            results = _results(futures)
        except BaseException:
            context.stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {file.path: result for file, result in zip(files, results, strict=True)}


def _one(file: RemoteFile, target: Path, place: Place, context: DownloadContext) -> tuple[str, int]:
    context.check()
    return place(file, join_inside(target, file.path), context)


def _counter(files: Sequence[RemoteFile], progress: Progress | None) -> Callable[[int], None] | None:
    if progress is None:
        return None
    total = sum(file.size or 0 for file in files)
    known = all(file.size is not None for file in files)
    lock = Lock()
    done = 0

    def count(size: int) -> None:
        nonlocal done
        with lock:
            done += size
            progress(done, total if known else max(done, total))

    return count


def _results(futures: Sequence[Future[tuple[str, int]]]) -> list[tuple[str, int]]:
    """What all returned; raise the first error as soon as there is one."""
    done, _ = wait(futures, return_when=FIRST_EXCEPTION)
    for future in done:
        future.result()
    return [future.result() for future in futures]


NO_LIMIT: Final = 1 << 62


def localize(
    source_fs: Any,
    root: str,
    target: Path,
    *,
    location: str = "",
    workers: int = WORKERS,
    progress: Progress | None = None,
    cancelled: Cancelled | None = None,
    entries: Sequence[FileEntry] | None = None,
) -> None:
    """Copy all files below ``root`` of ``source_fs`` to ``target``, which must be missing or an empty directory.

    The copy is made beside ``target`` and renamed, so ``target`` is complete or as it was. Big files come in ranges;
    a range that fails is fetched again, up to five times, and what has arrived is kept. Every size is checked, and
    at the end the source is listed again: a model that changed meanwhile is refused, for it may be half old.

    The filesystem may be any of fsspec's, synchronous side; the parent of ``target`` must exist. With ``location``, the
    URL of ``root``, a web server is read in ranges where it takes them. Each of the ``workers``, requests at once,
    holds up to 8 MiB. ``entries`` is the listing to go by, if the caller has just made one.

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
    files = list(remote_files(source_fs, location or root, wanted))
    with _beside(target) as partial, full_disk(str(target.parent), total):
        bring_privately(files, partial, workers=workers, progress=progress, cancelled=cancelled)
        with storage_faults("list", root):
            check_unchanged(root, wanted, list_files(source_fs, root))
        partial.rename(target)


def bring_privately(
    files: Sequence[RemoteFile],
    target: Path,
    *,
    workers: int = WORKERS,
    progress: Progress | None = None,
    cancelled: Cancelled | None = None,
    most: int = NO_LIMIT,
) -> dict[str, tuple[str, int]]:
    """Put ``files`` into the directory ``target`` and keep nothing of them elsewhere.

    Returns and raises what :func:`~repoagent.storage.transfer.localize.download_files` does.
    """
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=target) as unfinished:

        def place(file: RemoteFile, path: Path, context: DownloadContext) -> tuple[str, int]:
            into = PartialFile(Path(unfinished, secrets.token_hex(8)), "", provable=True)
            try:
                result = download_file(file, into, context, most=most)
            finally:
                into.close()
            into.path.rename(path)
            return result

        return download_files(files, target, place, workers=workers, progress=progress, cancelled=cancelled)


def check_unchanged(root: str, before: Sequence[FileEntry], after: Sequence[FileEntry]) -> None:
    """Raise ``UnavailableError`` if the listings differ."""
    if fingerprint_of(before) != fingerprint_of(after):
        changed = sorted({entry.path for entry in set(before) ^ set(after)})
        raise UnavailableError(f"{root} changed while it was copied ({', '.join(changed[:3])}); load it again")


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    partial = target.parent / f".{target.name[:100]}.{secrets.token_hex(8)}.partial"
    partial.mkdir(mode=0o700)
    try:
        yield partial
    finally:
        remove_tree(partial)  # nothing to remove once it was renamed
