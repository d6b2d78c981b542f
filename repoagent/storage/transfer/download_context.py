"""What the files of one download share."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from repoagent.errors import CancelledError


class DownloadContext:
    """Requests at once, progress, and whether the download was given up. Thread-safe."""

    def __init__(
        self,
        workers: int,
        *,
        count: Callable[[int], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        """Allow ``workers`` requests at once; ``count`` gets the bytes that arrived, from many threads."""
        self.workers = workers
        self.count = count if count is not None else _ignore
        self.stop = threading.Event()
        self._cancelled = cancelled
        self._free = threading.BoundedSemaphore(workers)

    @property
    def over(self) -> bool:
        """Whether the download was given up."""
        return self.stop.is_set() or (self._cancelled is not None and self._cancelled())

    def check(self) -> None:
        """Raise ``CancelledError`` once the download was given up."""
        if self.over:
            raise CancelledError("cancelled while copying the model")

    @contextmanager
    def one(self) -> Iterator[None]:
        """Be one of the requests, for a block."""
        while not self._free.acquire(timeout=0.1):
            self.check()
        try:
            self.check()
            yield
        finally:
            self._free.release()


def _ignore(size: int) -> None:
    """Nothing counts."""
