"""Files that are replaced as a whole."""

import os
from contextlib import suppress
from pathlib import Path


def replace_file(path: Path, data: bytes, *, private: bool = False) -> None:
    """Put ``data`` into ``path``; with ``private``, for its owner alone.

    No reader sees half of it, not even after a power failure, and of two processes that write at once one prevails. A
    link is replaced, not followed.

    Raises:
        OSError: it cannot be written; what was there is still there.
    """
    beside = path.with_name(f".{path.name[:100]}.{os.urandom(8).hex()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600 if private else 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        beside.replace(path)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
