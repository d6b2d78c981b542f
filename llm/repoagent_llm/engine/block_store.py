"""BlockStore: retained blocks of the KV cache in files, which outlive the process. A folder has those of one model."""

import contextlib
import hashlib
import logging
import os
import queue
import re
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

logger = logging.getLogger(__name__)

_SUFFIX: Final = ".kv"
_NAME: Final = re.compile(r"[0-9a-f]{16}\.kv")
_DIGEST: Final = 32
_WAITING: Final = 64
"""Blocks that wait to be written; more are left out, so that no step waits for a disk."""
_UNFINISHED_SECONDS: Final = 60
_PARTS: Final = 8


class BlockStore:
    """``identity``: of the model, its precision and what computes it; others' blocks lie in other folders.

    ``block_bytes``: of one block. Files take ``most_bytes`` at most; the one unused longest goes first. Each begins
    with a digest of all of it. Processes that share a folder look at it again after each eighth part of that, so that
    they take little more together. A disk that fails or is full costs speed alone. Anyone who can write into the folder
    decides what texts follow: one that another user may write to, or put another in the place of, is refused.

    Raises:
        OSError: the folder cannot be made, or others may write to it.
    """

    def __init__(self, folder: Path, identity: str, block_bytes: int, most_bytes: int) -> None:
        self._identity = identity.encode()
        self._folder = folder / hashlib.sha256(self._identity).hexdigest()[:32]
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status, parent = self._folder.lstat(), self._folder.parent.stat()
        replaceable = parent.st_mode & stat.S_IWOTH and not parent.st_mode & stat.S_ISVTX
        if replaceable or parent.st_uid not in (0, os.geteuid()):
            raise PermissionError(
                f"{self._folder.parent} must be a directory that no other user owns or all may write to"
            )
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise PermissionError(f"{self._folder} must be a directory that no other user owns or may write to")
        self._file_bytes = _DIGEST + block_bytes
        self._most = most_bytes // self._file_bytes
        self._lock = threading.Lock()
        self._known: dict[str, None] = {}  # the one unused longest first
        self._failed = False
        self._written = 0
        self._scan()
        self._queue: queue.Queue[tuple[str, Sequence[int], bytes] | None] = queue.Queue(_WAITING)
        self._writer = threading.Thread(target=self._write_all, name="repoagent-blocks", daemon=True)
        self._writer.start()

    def __len__(self) -> int:
        with self._lock:
            return len(self._known)

    def keep(self, number: int, tokens: Sequence[int], data: bytes) -> None:
        """Write a block, soon, if it is not there; ``number`` is its hash."""
        name = _name(number)
        with self._lock:
            if name in self._known:
                return
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait((name, tokens, data))

    def has(self, number: int) -> bool:
        """Whether there is a file for that hash."""
        with self._lock:
            return _name(number) in self._known

    def heads(self, size: int) -> Iterator[tuple[int, bytes]]:
        """The hashes of all blocks, each with the first ``size`` bytes of its data, which are not checked."""
        with self._lock:
            names = list(self._known)
        for name in names:
            with contextlib.suppress(OSError), open(self._open(name), "rb") as file:
                yield int(name.removesuffix(_SUFFIX), 16), file.read(_DIGEST + size)[_DIGEST:]

    def _open(self, name: str) -> int:
        return os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def load(self, number: int, tokens: Sequence[int]) -> bytes | None:
        """A block of these tokens; None: it is not there, or cannot be read, or is not what was written."""
        name = _name(number)
        with self._lock:
            if name not in self._known:
                return None
            self._known[name] = self._known.pop(name)
        try:
            with open(self._open(name), "rb") as file:
                found = file.read(self._file_bytes + 1)
            os.utime(self._folder / name)
        except FileNotFoundError:  # removed meanwhile, to make room
            found = b""
        except OSError as error:
            self._warn(error)
            found = b""
        digest, data = found[:_DIGEST], found[_DIGEST:]
        if len(found) == self._file_bytes and digest == self._digest(name, tokens, data):
            return data
        self._forget(name)
        return None

    def close(self) -> None:
        """Write what waits, and end."""
        self._queue.put(None)
        self._writer.join()

    def _scan(self) -> None:
        """What is there from before; files of another size, and those that were not finished, are removed."""
        found = []
        try:
            for entry in os.scandir(self._folder):
                with contextlib.suppress(FileNotFoundError, IsADirectoryError):  # another process removes files, too
                    status = entry.stat(follow_symlinks=False)
                    if _NAME.fullmatch(entry.name) and status.st_size == self._file_bytes:
                        found.append((status.st_mtime_ns, entry.name))
                    elif time.time() - status.st_mtime > _UNFINISHED_SECONDS:  # else it may be being written
                        os.unlink(entry.path)
        except OSError as error:
            self._warn(error)
        with self._lock:
            self._known = {name: None for _, name in sorted(found)}
        self._make_room(0)

    def _write_all(self) -> None:
        while (item := self._queue.get()) is not None:
            name, tokens, data = item
            try:
                self._write(name, tokens, data)
            except Exception as error:  # whatever a disk raises: this thread goes on
                self._warn(error)

    def _write(self, name: str, tokens: Sequence[int], data: bytes) -> None:
        with self._lock:
            if name in self._known or self._most < 1:
                return
        self._written += 1
        if self._written * _PARTS > self._most:
            self._written = 0
            self._scan()  # other processes may have written
        self._make_room(1)
        unfinished = self._folder / f".{name}.{os.getpid()}.{id(self)}"
        try:
            with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
                file.write(self._digest(name, tokens, data))
                file.write(data)
            unfinished.replace(self._folder / name)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise
        with self._lock:
            self._known[name] = None

    def _make_room(self, more: int) -> None:
        while True:
            with self._lock:
                if len(self._known) + more <= self._most or not self._known:
                    return
                name = next(iter(self._known))
            self._forget(name)

    def _forget(self, name: str) -> None:
        with self._lock:
            self._known.pop(name, None)
        try:
            (self._folder / name).unlink(missing_ok=True)
        except OSError as error:
            self._warn(error)

    def _digest(self, name: str, tokens: Sequence[int], data: bytes) -> bytes:
        digest = hashlib.blake2b(self._identity + name.encode(), digest_size=_DIGEST)
        digest.update(np.array(tokens, np.int64).tobytes())
        digest.update(data)
        return digest.digest()

    def _warn(self, error: Exception) -> None:
        if not self._failed:
            logger.warning("blocks of the KV cache cannot be kept in files: %s", error)
        self._failed = True


def _name(number: int) -> str:
    return f"{number:016x}{_SUFFIX}"
