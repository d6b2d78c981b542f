"""Digests of files and of ranges of them, several at once. hashlib releases the interpreter lock."""

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from repoagent.api import CancelledError, UnsafePathError, UnsupportedError, open_beneath
from repoagent_verify.errors import VerificationError
from repoagent_verify.manifest import Resource

__all__ = ["Progress", "hash_resources", "new_hash"]

Progress = Callable[[int, int], None]
"""Bytes done, bytes in all."""

_PIECE: Final = 1 << 20
_WORKERS: Final = max(2, min(8, os.cpu_count() or 2))


def new_hash(name: str) -> Any:
    """A hash object for an algorithm of the specification.

    Raises:
        UnsupportedError: it is ``blake3``, and that package is not installed.
    """
    if name != "blake3":
        return hashlib.new(name)
    try:
        import blake3
    except ImportError:
        raise UnsupportedError(
            "blake3 needs its package; from a checkout: pip install './agents/verify[blake3]'"
        ) from None
    return blake3.blake3()


def hash_resources(
    root: Path,
    resources: Sequence[Resource],
    algorithm: str,
    *,
    cancelled: Callable[[], bool] = lambda: False,
    progress: Progress = lambda _done, _total: None,
    follow: bool = False,
) -> list[bytes]:
    """The digests of ``resources`` below ``root``, in their order. Their own ``digest`` is not looked at.

    Raises:
        CancelledError: ``cancelled()`` became true.
        VerificationError: a file cannot be read, or is shorter than its range.
    """
    new_hash(algorithm)
    sizes = [_length(root, resource) for resource in resources]
    total, done = sum(sizes), 0

    def digest(resource: Resource) -> bytes:
        return _digest(root, resource, algorithm, cancelled, follow)

    found = []
    with ThreadPoolExecutor(_WORKERS, thread_name_prefix="verify") as pool:
        try:
            for value, size in zip(pool.map(digest, resources), sizes, strict=True):
                found.append(value)
                done += size
                progress(done, total)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return found


def _length(root: Path, resource: Resource) -> int:
    if resource.end is not None:
        return resource.end - resource.start
    try:
        return max(0, (root / resource.path).stat().st_size - resource.start)
    except OSError as error:
        raise VerificationError(f"{resource.path} cannot be read: {error.strerror}") from None


def _digest(root: Path, resource: Resource, algorithm: str, cancelled: Callable[[], bool], follow: bool) -> bytes:
    hasher = new_hash(algorithm)
    buffer = memoryview(bytearray(_PIECE))
    left = None if resource.end is None else resource.end - resource.start
    try:
        with open_beneath(root, resource.path, follow=follow) as stream:
            stream.seek(resource.start)
            while left is None or left > 0:
                if cancelled():
                    raise CancelledError("the load was cancelled")
                count = stream.readinto(buffer[: min(_PIECE, left)] if left is not None else buffer) or 0
                if not count:
                    break
                hasher.update(buffer[:count])
                left = None if left is None else left - count
    except OSError as error:
        raise VerificationError(f"{resource.path} cannot be read: {error.strerror}") from None
    except UnsafePathError as error:
        raise VerificationError(str(error)) from None
    if left:
        raise VerificationError(f"{resource.path} ends before byte {resource.end}")
    return bytes(hasher.digest())
