"""Digests of files and of ranges of them, several at once. hashlib releases the interpreter lock."""

import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Final

from repoagent.api import CancelledError, UnsafePathError, UnsupportedError, open_beneath
from repoagent_verify.errors import VerificationError
from repoagent_verify.manifest import Resource

__all__ = ["Progress", "hash_resources", "new_hash"]

Progress = Callable[[int, int], None]
"""Bytes done, bytes in all."""

_PIECE: Final = 1 << 20
_WORKERS: Final = max(2, min(8, len(os.sched_getaffinity(0))))
_TICK_SECONDS: Final = 0.1
"""How often progress is reported."""


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
    lengths = [_length(root, resource) for resource in resources]
    total = sum(lengths)
    # The largest first: one that comes last would keep a single thread busy.
    order = sorted(range(len(resources)), key=lambda index: -lengths[index])
    hashing = _Hashing(root, resources, order, algorithm, cancelled, follow)
    workers = min(_WORKERS, max(1, len(resources)))
    with ThreadPoolExecutor(workers, thread_name_prefix="verify") as pool:
        pending = {pool.submit(hashing.work) for _ in range(workers)}
        try:
            while pending:
                ended, pending = wait(pending, timeout=_TICK_SECONDS, return_when=FIRST_EXCEPTION)
                for future in ended:
                    future.result()
                progress(hashing.done, total)
        finally:
            hashing.stopped = True
    return hashing.digests


def _length(root: Path, resource: Resource) -> int:
    if resource.end is not None:
        return resource.end - resource.start
    try:
        return max(0, (root / resource.path).stat().st_size - resource.start)
    except OSError as error:
        raise VerificationError(f"{resource.path} cannot be read: {error.strerror}") from None


class _Hashing:
    """The work that threads share. Each takes the next resource until there is none, or one has failed."""

    def __init__(
        self,
        root: Path,
        resources: Sequence[Resource],
        order: Sequence[int],
        algorithm: str,
        cancelled: Callable[[], bool],
        follow: bool,
    ) -> None:
        self._root = root
        self._resources = resources
        self._order = order
        self._algorithm = algorithm
        self._cancelled = cancelled
        self._follow = follow
        self._lock = threading.Lock()
        self._turns = itertools.count()
        self.stopped = False
        self.done = 0
        """Bytes that were hashed."""
        self.digests = [b""] * len(resources)

    def work(self) -> None:
        buffer = memoryview(bytearray(_PIECE))
        while not self.stopped and (turn := next(self._turns)) < len(self._order):
            index = self._order[turn]
            self.digests[index] = self._digest(self._resources[index], buffer)

    def _digest(self, resource: Resource, buffer: memoryview) -> bytes:
        hasher = new_hash(self._algorithm)
        left = None if resource.end is None else resource.end - resource.start
        try:
            with open_beneath(self._root, resource.path, follow=self._follow) as stream:
                stream.seek(resource.start)
                while left is None or left > 0:
                    if self.stopped or self._cancelled():
                        raise CancelledError("the load was cancelled")
                    count = stream.readinto(buffer[: min(_PIECE, left)] if left is not None else buffer) or 0
                    if not count:
                        break
                    hasher.update(buffer[:count])
                    left = None if left is None else left - count
                    with self._lock:
                        self.done += count
        except OSError as error:
            raise VerificationError(f"{resource.path} cannot be read: {error.strerror}") from None
        except UnsafePathError as error:
            raise VerificationError(str(error)) from None
        if left:
            raise VerificationError(f"{resource.path} ends before byte {resource.end}")
        return bytes(hasher.digest())
