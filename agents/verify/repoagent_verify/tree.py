"""The files of a model, as the specification enumerates them (sections 6.1, 6.2 and 8.4), and their digests."""

import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from repoagent.api import FileRange, InvalidArgumentError, digest_ranges, walk_beneath
from repoagent_verify.manifest import Resource, Serialization, VerificationError

Progress = Callable[[int, int], None]
"""Bytes done, bytes in all."""


class WholeFiles(Protocol):
    """The digests of whole files, as :meth:`repoagent.api.AgentModel.digests` has them."""

    def __call__(self, files: Mapping[str, Sequence[str]], *, follow: bool) -> Mapping[str, Mapping[str, str]]: ...


@dataclass(frozen=True, slots=True)
class File:
    """A regular file: its ``path`` below the root with ``/``, and its size in bytes."""

    path: str
    size: int


class Ignored:
    """Paths that a signature does not cover: a file or directory is ignored with everything below it."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = frozenset(path.strip("/") for path in paths)

    def covers(self, path: str) -> bool:
        """Whether ``path`` is one of the paths, or below one."""
        parts = path.split("/")
        return any("/".join(parts[:count]) in self._paths for count in range(1, len(parts) + 1))


def list_files(root: Path, ignored: Ignored, *, allow_symlinks: bool) -> list[File]:
    """Every regular file below ``root`` that is not ignored, sorted by its path.

    Links are followed if ``allow_symlinks``, and only to files and directories inside ``root``.

    Raises:
        VerificationError: a link where none is allowed or one that leads out of the model or in a circle, a special
            file, a name that is not UTF-8.
    """
    files = []
    with _refusing():
        for path, mode, size in walk_beneath(root, follow=allow_symlinks, skip=ignored.covers):
            _check_name(path)
            if stat.S_ISLNK(mode):
                raise VerificationError(f"{path} is a symbolic link, and the signature allows none")
            if stat.S_ISREG(mode):
                files.append(File(path, size))
            elif not stat.S_ISDIR(mode):
                raise VerificationError(f"{path} is a special file, which no signature covers")
    return sorted(files, key=lambda file: file.path)


def digests_of(
    root: Path,
    resources: Sequence[Resource],
    how: Serialization,
    *,
    cancelled: Callable[[], bool] = lambda: False,
    progress: Progress = lambda _done, _total: None,
    whole: WholeFiles | None = None,
) -> list[bytes]:
    """The digests of ``resources`` below ``root``, in their order. Their own ``digest`` is not looked at.

    ``whole`` is asked if all are whole files.

    Raises:
        CancelledError: ``cancelled()`` was true.
        VerificationError: a file cannot be read, or is shorter than its range.
    """
    if whole is not None and all(each.whole for each in resources):
        with _refusing():
            found = whole({each.path: (how.hash_type,) for each in resources}, follow=how.allow_symlinks)
            return [bytes.fromhex(found[each.path][how.hash_type]) for each in resources]
    ranges = [FileRange(each.path, each.start, each.end) for each in resources]
    with _refusing():
        return digest_ranges(
            root, ranges, how.hash_type, follow=how.allow_symlinks, cancelled=cancelled, progress=progress
        )


@contextmanager
def _refusing() -> Iterator[None]:
    """What cannot be read is refused like what changed, whatever the reason."""
    try:
        yield
    except OSError as error:
        raise VerificationError(f"{error.filename} cannot be read: {error.strerror}") from None
    except InvalidArgumentError as error:
        raise VerificationError(str(error)) from None


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise VerificationError(f"{path!r} is a name that is not valid UTF-8") from None
