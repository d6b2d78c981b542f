"""Bringing many files here at once."""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Lock
from typing import Final

from repoagent.storage.paths.names import check_tree, join_inside
from repoagent.storage.transfer.download_context import DownloadContext
from repoagent.storage.transfer.streams import RemoteFile

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
