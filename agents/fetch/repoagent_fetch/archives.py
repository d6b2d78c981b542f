"""Unpacking archives that no one has vouched for: only files, only below the target, and no bombs."""

import gzip
import os
import tarfile
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Final

from repoagent.api import InvalidArgumentError, UnsafePathError

_HEADER: Final = 1 << 20
"""The largest header of one entry: the library reads it whole."""
_HEADERS: Final = 16
"""Of one entry: a name, a link, a table of both kinds."""
_RATIO: Final = 100
_DEEPEST: Final = 100
"""Directories in one another."""
_LONGEST: Final = 255
"""Bytes of one name."""
_FREE: Final = 64 << 20
"""What archives may always unpack to together; beyond that, a hundred times their own size."""
_PIECE: Final = 1 << 20
_SINGLE: Final = 1 << 20
"""Reads of a single byte from one archive: the library reads names in headers of gzip like that, to whatever end."""
_BROKEN: Final = (
    tarfile.TarError,
    gzip.BadGzipFile,
    zlib.error,
    EOFError,
    ValueError,
    OverflowError,
)
_EXTENDED: Final = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


class _Entry(tarfile.TarInfo):
    """An entry whose extended headers are small and few: each is read by a call within that for the one before."""

    def _proc_member(self, archive: Any) -> Any:
        if self.type in _EXTENDED and self.size > _HEADER:
            raise tarfile.HeaderError(f"a header of {self.size} bytes")
        archive.headers = (archive.headers if self.type in _EXTENDED else 0) + 1
        if archive.headers > _HEADERS:
            raise tarfile.HeaderError(f"more than {_HEADERS} headers of one entry")
        return super()._proc_member(archive)  # type: ignore[misc]


class _Archive(tarfile.TarFile):
    tarinfo = _Entry
    headers = 0
    """Of the entry that is being read."""


class Unpacking:
    """Puts the files of archives below one directory, counting them all together."""

    def __init__(
        self,
        target: Path,
        place: Callable[[str], str | None],
        *,
        packed: int,
        most_files: int,
        check_cancelled: Callable[[], None],
    ) -> None:
        """Unpack nothing yet.

        Args:
            target: An existing directory that is no one else's.
            place: Path in an archive -> path below ``target``, or None for what is not wanted.
            packed: The bytes of all archives, one that is unpacked twice counted once.
            most_files: How many entries there may be.
            check_cancelled: Raises when the load was cancelled.
        """
        self._target = target
        self._place = place
        self._most = most_files
        self._check_cancelled = check_cancelled
        self._entries = 0
        self._left = max(_FREE, _RATIO * packed)

    def unpack(self, archive: Path, compression: str, below: str) -> None:
        """Unpack one archive; of an image, only the directory ``below``. Later archives win over earlier ones.

        Raises:
            UnsafePathError: an entry would leave ``target``, or is not a file or a directory.
            InvalidArgumentError: it is not an archive, or unpacks to far more than it is.
        """
        try:
            with ExitStack() as stack:
                raw: Any = _Checked(stack.enter_context(archive.open("rb")), self._check_cancelled)
                if compression == "gzip":
                    raw = stack.enter_context(gzip.GzipFile(fileobj=raw, mode="rb"))
                limited = _Limited(raw, self._take)
                tar = stack.enter_context(_Archive.open(fileobj=limited, mode="r|"))  # type: ignore[call-overload]
                while (entry := tar.next()) is not None:
                    self._check_cancelled()
                    self._one(tar, entry, below)
                    tar.members.clear()  # the library keeps every entry otherwise
        except _BROKEN as error:
            raise InvalidArgumentError(f"a layer is not a valid archive: {type(error).__name__}: {error}") from None

    def _take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise InvalidArgumentError("the layers unpack to more than a hundred times their size: they are refused")

    def _one(self, tar: tarfile.TarFile, entry: tarfile.TarInfo, below: str) -> None:
        self._entries += 1
        if self._entries > self._most:
            raise InvalidArgumentError(f"the layers have more than {self._most} entries (--limit-download-files)")
        name = entry.name.removeprefix("./").rstrip("/")
        if below:
            if not name.startswith(f"{below}/"):
                return
            name = name[len(below) + 1 :]
        if entry.isdir() or name in ("", "."):
            return
        if not entry.isreg() or entry.issparse():
            raise UnsafePathError(f"the layer has {name[:200]!r}, which is a link or a special file")
        if not _is_plain(name):
            raise UnsafePathError(f"the layer has {name[:200]!r}, which is not a plain path")
        if name.rpartition("/")[2].startswith(".wh."):
            self._whiteout(name)
            return
        where = self._place(name)
        if where is not None:
            self._write(tar, entry, where)

    def _whiteout(self, name: str) -> None:
        """An image removes a file of an earlier layer."""
        folder, _, last = name.rpartition("/")
        if last == ".wh..wh..opq":
            raise InvalidArgumentError(
                "the image replaces a whole directory of an earlier layer, which is not supported"
            )
        last = last.removeprefix(".wh.")
        if last in ("", ".", ".."):
            raise UnsafePathError(f"the layer has {name[:200]!r}, which is not a plain path")
        removed = f"{folder}/{last}" if folder else last
        where = self._place(removed)
        if where is not None:
            try:
                (self._target / where).unlink(missing_ok=True)
            except (IsADirectoryError, NotADirectoryError):
                raise InvalidArgumentError("the image removes a directory of an earlier layer: not supported") from None

    def _write(self, tar: tarfile.TarFile, entry: tarfile.TarInfo, where: str) -> None:
        path = self._target / where
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            content = tar.extractfile(entry)
            if content is None:
                raise UnsafePathError(f"the layer has {entry.name[:200]!r}, which is not a file")
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            raise UnsafePathError(f"the layers have {where[:200]!r} both as a file and as a directory") from None
        with open(fd, "wb") as file:
            left = entry.size
            while left:
                self._check_cancelled()
                piece = content.read(min(left, _PIECE))
                if not piece:
                    raise tarfile.ReadError(f"{where} ends too early")
                file.write(piece)
                left -= len(piece)


def _is_plain(name: str) -> bool:
    """Whether a directory of this machine can hold ``name``, and a clean-up that is recursive can follow it."""
    try:
        parts = name.encode().split(b"/")
    except UnicodeEncodeError:
        return False
    odd = any(part in (b"", b".", b"..") or len(part) > _LONGEST for part in parts)
    return not odd and len(parts) <= _DEEPEST and "\0" not in name


class _Checked:
    """The file of an archive. It ends with an error when the load was cancelled, or only single bytes are read."""

    def __init__(self, file: IO[bytes], check_cancelled: Callable[[], None]) -> None:
        self._file = file
        self._check_cancelled = check_cancelled
        self._single = 0

    def read(self, size: int = -1) -> bytes:
        self._check_cancelled()
        self._single += size == 1
        if self._single > _SINGLE:
            raise gzip.BadGzipFile("a header without end")
        return self._file.read(size)


class _Limited:
    """A stream that reports how much was read of it."""

    def __init__(self, stream: Any, take: Callable[[int], None]) -> None:
        self._stream = stream
        self._take = take

    def read(self, size: int) -> bytes:
        content: bytes = self._stream.read(size)
        self._take(len(content))
        return content
