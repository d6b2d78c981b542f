"""Event loops that read the answers of other processes, so that no thread has to be woken up for them."""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger(__name__)
_threads: Final = threading.local()


class LoopReader:
    """An event loop that waits for nothing but its descriptors; what is submitted on it may use it.

    A context manager, on the loop's thread. The front ends have one for each of their loops. A loop of an embedder's,
    which may wait for an answer itself, has none.
    """

    def __init__(self, loop: "asyncio.AbstractEventLoop") -> None:
        self._loop = loop
        self._abandoned: dict[int, Callable[[], None]] = {}
        self._calls: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._ended = False
        self.overran = False
        """Whether what it has read is more than another loop has got through."""

    @staticmethod
    def here() -> "LoopReader | None":
        """That of the thread that asks, if it has one."""
        return getattr(_threads, "reader", None)

    def __enter__(self) -> "LoopReader":
        _threads.reader = self
        return self

    def __exit__(self, *exception: object) -> None:
        _threads.reader = None
        for fd, abandoned in list(self._abandoned.items()):
            self.forget(fd)
            abandoned()
        with self._lock:
            self._ended = True
        while self._calls:
            self._do_calls()

    def watch(self, fd: int, readable: Callable[[], None], abandoned: Callable[[], None]) -> int:
        """Call ``readable`` whenever ``fd`` is readable or at its end, ``abandoned`` when the loop ends before.

        Both are called on the loop's thread, as this is, and must return soon.

        Returns a descriptor of its own for :meth:`forget`: ``fd`` may be closed before that.

        Raises:
            OSError: there is no descriptor left.
        """
        own = os.dup(fd)
        try:
            self._loop.add_reader(own, readable)
        except BaseException:
            os.close(own)
            raise
        self._abandoned[own] = abandoned
        # uvloop makes it non-blocking, for all that have the same socket; none of the loops needs that.
        os.set_blocking(own, True)
        return own

    def forget(self, own: int) -> None:
        """Watch what :meth:`watch` returned no more. On the loop's thread."""
        if self._abandoned.pop(own, None) is not None:
            self._loop.remove_reader(own)
            os.close(own)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call ``call`` after ``seconds``, unless the loop has ended by then. On the loop's thread."""
        self._loop.call_later(seconds, call)

    def post(self, call: Callable[[], None]) -> bool:
        """Have the loop's thread call ``call`` soon; False if the loop has ended. From any thread."""
        with self._lock:
            if self._ended:
                return False
            self._calls.append(call)
        with suppress(RuntimeError):  # The loop was closed this moment; it did what it had been given before.
            self._loop.call_soon_threadsafe(self._do_calls)
        return True

    def _do_calls(self) -> None:
        for _ in range(len(self._calls)):  # Not those that come of them: the loop has others to serve.
            call = self._calls.popleft()
            try:
                call()
            except Exception:  # The other calls are still to be made.
                logger.exception("a call on an event loop failed")
