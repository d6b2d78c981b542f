"""A file that is not complete yet, on disk in a form that survives a kill at any moment."""

import json
import os
from pathlib import Path
from typing import Final

from repoagent.nested_text import read_json

CHUNK: Final = 1 << 20
"""What is remembered as here or not."""
ENDINGS: Final = (".marks", ".about")
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_NEW: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def remove(path: Path) -> None:
    """Remove an unfinished file, what it is first, so that a kill leaves nothing that counts."""
    for ending in (*reversed(ENDINGS), ""):
        path.with_name(path.name + ending).unlink(missing_ok=True)


def boot() -> str:
    """What differs after each start of the machine."""
    return _BOOT.read_text().strip() if _BOOT.exists() else "unknown"


class PartialFile:
    """The bytes of a file in any order, and which of them are here. One process at a time may have it open.

    The bytes are at ``path``. Beside it, ``.marks`` has a byte for each :data:`CHUNK` that is complete, written after
    the chunk, and ``.about`` what it is. A mark without its bytes cannot be seen: a killed
    process leaves both to the kernel in order, and after a crash of the machine, which may lose the bytes and not the
    mark, files count only if a digest will prove them.
    """

    def __init__(self, path: Path, about: str, *, provable: bool) -> None:
        """Continue what is at ``path``, in a directory for unfinished files only, if it is about the same file, else
        begin.

        ``about`` identifies the content as far as it is known; ``provable``: the whole will be compared with a digest.
        """
        self.path: Final = path
        self._marks_path, self._about_path = (path.with_name(path.name + ending) for ending in ENDINGS)
        self._about = {"about": about, "boot": "" if provable else boot()}
        self.tag = ""
        """What the server reported of the file when the download began."""
        self.marks: Final = bytearray()
        self._marks_fd: int | None = None
        if not self._continue():
            remove(path)
        self.fd: Final = os.open(self.path, _NEW, 0o600)

    def close(self) -> None:
        os.close(self.fd)
        if self._marks_fd is not None:
            os.close(self._marks_fd)
            self._marks_fd = None

    def keep(self, tag: str) -> None:
        """From now on what arrives can be continued, if the server still reports ``tag`` then."""
        if self._marks_fd is None:
            self._marks_fd = os.open(self._marks_path, _NEW, 0o600)
        if tag != self.tag or not self._about_path.exists():
            self.tag = tag
            self._about_path.write_text(json.dumps({**self._about, "tag": tag}))

    def clear(self) -> None:
        if self._marks_fd is not None:
            os.ftruncate(self._marks_fd, 0)
        os.ftruncate(self.fd, 0)
        self.marks.clear()

    def write(self, position: int, content: memoryview) -> None:
        """Write bytes, which count once their chunk is marked."""
        while content:
            count = os.pwrite(self.fd, content, position)
            position += count
            content = content[count:]

    def mark(self, chunk: int) -> None:
        """Remember that all bytes of ``chunk`` are here. Not for two threads at once."""
        if len(self.marks) <= chunk:
            self.marks.extend(bytes(chunk + 1 - len(self.marks)))
        self._put(chunk, 1)

    def unmark(self, chunk: int) -> None:
        self._put(chunk, 0)

    def has(self, chunk: int) -> bool:
        return chunk < len(self.marks) and self.marks[chunk] == 1

    def _put(self, chunk: int, value: int) -> None:
        if self._marks_fd is not None:
            os.pwrite(self._marks_fd, bytes([value]), chunk)
        self.marks[chunk] = value

    def _continue(self) -> bool:
        """Whether something is here that can be continued; then it is."""
        try:
            known = read_json(self._about_path.read_text())
            self._marks_fd = os.open(self._marks_path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except (OSError, ValueError):
            return False
        tag = known.get("tag") if isinstance(known, dict) else None
        if not isinstance(tag, str) or known != {**self._about, "tag": tag} or not self.path.exists():
            os.close(self._marks_fd)
            self._marks_fd = None
            return False
        self.tag = tag
        self.marks.extend(os.pread(self._marks_fd, os.fstat(self._marks_fd).st_size, 0))
        return True
