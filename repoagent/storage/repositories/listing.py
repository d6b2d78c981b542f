"""Listing a repository or a model, on a disk or on any fsspec filesystem, with as few calls as it allows."""

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from repoagent.beneath.opening import check_depth
from repoagent.errors import InvalidArgumentError, NotFoundError, UnsafePathError
from repoagent.limits import Limits
from repoagent.storage.paths.names import check_tree
from repoagent.storage.repositories.filesystems import is_local


@dataclass(frozen=True, slots=True, order=True)
class FileEntry:
    """One file of a model.

    ``path`` is relative, with ``/``; ``name`` is how the filesystem itself calls the file; ``size`` is in bytes, or
    None if a server does not report it; ``tag`` is the ETag, or whatever else the filesystem changes when it writes
    (mtime and ctime in nanoseconds on a disk), and empty if there is nothing.
    """

    path: str
    size: int | None
    tag: str
    name: str


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Compares equal while no file of the model was added, removed or written."""

    digest: str
    files: int
    size: int


def fingerprint_of(entries: Iterable[FileEntry]) -> Fingerprint:
    """Condense a listing; its order does not matter."""
    ordered = sorted(entries)
    state = hashlib.sha256()
    for entry in ordered:
        # No part can hold a NUL, so that different listings never give the same bytes.
        state.update(f"{entry.path}\0{entry.size}\0{entry.tag}\0".encode("utf-8", "surrogateescape"))
    return Fingerprint(state.hexdigest(), len(ordered), sum(entry.size or 0 for entry in ordered))


# Where the filesystems keep what changes with the content, the surest first.
_TAGS: Final = ("ETag", "etag", "md5Hash", "content_md5", "Content-MD5", "blob_id", "generation", "LastModified",
                "last_modified", "Last-Modified", "updated", "mtime", "modified", "created")  # fmt: skip


def list_directories(fs: Any, root: str) -> list[str]:
    """The sorted names of the directories directly in ``root``, hidden ones left out. One listing. Raises the
    filesystem's errors, ``FileNotFoundError`` without ``root``."""
    if is_local(fs):
        with os.scandir(root) as entries:
            return sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())
    fs.invalidate_cache()
    found = (_last(info["name"], fs) for info in fs.ls(root, detail=True) if info["type"] == "directory")
    return sorted({name for name in found if name and not name.startswith(".")})


def list_files(fs: Any, root: str, *, most: int | None = None) -> list[FileEntry]:
    """Every file below ``root``, sorted by path.

    Raises:
        InvalidArgumentError: there are more than ``most`` files and directories.
        UnsafePathError: a name or a link that would leave ``root``, a loop of links, or something that is not a file.
        NotFoundError: ``root`` is a file.
        FileNotFoundError: there is no ``root``; other filesystem errors as they come.
    """
    entries = sorted(_counted(_walk_local(Path(root), most) if is_local(fs) else _find(fs, root), most))
    check_tree(entry.path for entry in entries)
    return entries


def single_file(fs: Any, name: str) -> FileEntry | None:
    """The file ``name``, if it is one. Filesystem errors as they come."""
    fs.invalidate_cache()
    if not fs.isfile(name):
        return None
    return _entry(fs, name, fs.info(name), name.rstrip("/").rpartition("/")[2])


def _counted(entries: Iterator[FileEntry], most: int | None) -> Iterator[FileEntry]:
    for number, entry in enumerate(entries, 1):
        _check_count(number, most)
        yield entry


def _check_count(number: int, most: int | None) -> None:
    if most is not None and number > most:
        raise InvalidArgumentError(
            f"the model has more than {most} files and directories, which is the limit ({Limits.flag('model_files')})"
        )


def _walk_local(root: Path, most: int | None) -> Iterator[FileEntry]:
    real_root = os.path.realpath(root)
    status = os.stat(real_root)
    yield from _Walk(real_root, most).below(real_root, "", frozenset({(status.st_dev, status.st_ino)}))


class _Walk:
    def __init__(self, root: str, most: int | None) -> None:
        self._root = root
        self._most = most
        self._seen = 0

    def below(self, directory: str, prefix: str, above: frozenset[tuple[int, int]]) -> Iterator[FileEntry]:
        for entry in self._entries(directory):
            path = prefix + entry.name
            if entry.is_symlink():
                _check_link(entry.path, path, self._root)
            status = entry.stat()
            if stat.S_ISDIR(status.st_mode):
                identity = (status.st_dev, status.st_ino)
                if identity in above:
                    raise UnsafePathError(f"{path!r} is a link to a directory above it")
                check_depth(len(above), path)
                yield from self.below(entry.path, path + "/", above | {identity})
            elif stat.S_ISREG(status.st_mode):
                # Retrained weights have the size of the old ones, and a copy or a build may give them the old time. The
                # other time is the kernel's own; no one sets it.
                yield FileEntry(path, status.st_size, f"{status.st_mtime_ns} {status.st_ctime_ns}", entry.path)
            else:
                raise UnsafePathError(f"{path!r} is neither a file nor a directory")

    def _entries(self, directory: str) -> list["os.DirEntry[str]"]:
        entries = []
        with os.scandir(directory) as scan:
            for entry in scan:
                self._seen += 1
                _check_count(self._seen, self._most)
                entries.append(entry)
        return entries


def _check_link(link: str, path: str, root: str) -> None:
    target = os.path.realpath(link)
    if target != root and not target.startswith(root.rstrip("/") + "/"):
        raise UnsafePathError(f"{path!r} is a link that leaves the model's directory")


def _find(fs: Any, root: str) -> Iterator[FileEntry]:
    fs.invalidate_cache()
    base = fs._strip_protocol(root).rstrip("/")
    found: Mapping[str, Mapping[str, Any]] = fs.find(root, detail=True)
    if not found and not fs.isdir(root):
        raise FileNotFoundError(root)
    for name, info in found.items():
        if name.rstrip("/") == base:
            if info["type"] == "file" and not name.endswith("/"):
                raise NotFoundError(f"{root} is a file; expected a directory")
        elif not name.endswith("/"):  # a store's marker of an empty directory
            yield _entry(fs, name, info, name.removeprefix(base).removeprefix("/"))


def _entry(fs: Any, name: str, info: Mapping[str, Any], path: str) -> FileEntry:
    # An HTML index has no sizes: ask for each file.
    known = info if info.get("size") is not None else fs.info(name)
    return FileEntry(unquote(path) if _is_http(fs) else path, known.get("size"), _tag(known), name)


def _tag(info: Mapping[str, Any]) -> str:
    return next((str(info[key]) for key in _TAGS if info.get(key)), "")


def _last(name: str, fs: Any) -> str:
    last = name.rstrip("/").rpartition("/")[2]
    return unquote(last) if _is_http(fs) else last


def _is_http(fs: Any) -> bool:
    return "http" in fs.protocol
