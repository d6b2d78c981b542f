"""A file that exists afterwards only if all went well."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Sizes", "new_file"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of the file that was read and of the one that was written."""

    read: int
    written: int


@contextmanager
def new_file(path: Path) -> Iterator[int]:
    """Create ``path`` for writing, for the owner only; remove it again if the block raises."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
