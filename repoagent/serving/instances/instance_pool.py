"""Handing instances out to threads: fast when there is no crowd, fair when there is."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, Generic, TypeVar

from repoagent.serving.requests.request import InferRequest

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PATIENCE_NS: Final = 1_000_000


class _Waiter(Generic[T]):
    """A thread that waits. Its mail is an item, or None for "look again"."""

    __slots__ = ("called", "mail", "since_ns")

    def __init__(self) -> None:
        self.mail: SimpleQueue[T | None] = SimpleQueue()
        self.since_ns = time.monotonic_ns()
        self.called = False

    def look_again(self) -> None:
        self.mail.put(None)


class InstancePool(Generic[T]):
    """Items of which each is held by one thread at a time.

    A thread that comes by while an item is free takes it, even past others that wait: on one interpreter lock, passing
    the item on to a sleeping thread after every request would cost more than most requests. But one that has waited a
    millisecond is handed the next item that is given back, so no thread starves.
    """

    for_one = False
    """An item that was taken is for one execution; then it must be given back."""

    def __init__(self, items: Iterable[T]) -> None:
        self.items = tuple(items)
        self._idle = list(self.items)
        self._leaving: dict[int, tuple[T, Callable[[T], None]]] = {}
        """By their identities: what is to go, and is closed when it has been given back."""
        self._waiters: deque[_Waiter[T]] = deque()
        self._lock = threading.Lock()

    def take(self, timeout: float | None = None, request: InferRequest | None = None) -> T | None:
        """An item, which is the caller's until :meth:`give`.

        None if none was free for ``timeout`` seconds, or until ``request`` was cancelled.
        """
        try:
            return self._idle.pop()
        except IndexError:
            return self._wait(timeout, request)

    def take_idle(self) -> T | None:
        """An item if one is free at the moment and no thread waits for it."""
        if self._waiters:
            return None
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def retake(self, item: T) -> bool:
        """Have an item that was taken for a further execution, in the order of all that wait for one.

        False if it has to be given back first.
        """
        return False

    @property
    def has_idle(self) -> bool:
        """Whether :meth:`take_idle` would give one, if no other thread takes it first."""
        return bool(self._idle) and not self._waiters

    def give(self, item: T) -> None:
        self._idle.append(item)
        if self._leaving:
            self._let_go()
        if self._waiters:
            with self._lock:
                self._call_first()

    def change(self, added: Iterable[T], removed: Iterable[T], close: Callable[[T], None]) -> None:
        """Hand ``added`` out too, and ``close`` each of ``removed``, on its own thread, once none holds it."""
        leaving = {id(item): (item, close) for item in removed}
        with self._lock:
            self.items = (*(item for item in self.items if id(item) not in leaving), *(added := tuple(added)))
            self._leaving.update(leaving)
        for item in added:
            self.give(item)
        # What was given back before it was known to leave stands among the idle; later givers look themselves.
        self._let_go()

    def _let_go(self) -> None:
        for key, (item, close) in list(self._leaving.items()):
            try:
                self._idle.remove(item)
            except ValueError:  # Someone holds it.
                continue
            del self._leaving[key]
            _close_elsewhere(partial(close, item))

    def close(self) -> None:
        """Nothing will be executed any more: threads that wait may stop."""

    def _wait(self, timeout: float | None, request: InferRequest | None) -> T | None:
        deadline = None if timeout is None else time.monotonic() + timeout
        waiter: _Waiter[T] = _Waiter()
        if request is not None:
            request.on_cancel = waiter.look_again
        with self._lock:
            self._waiters.append(waiter)
        # An item given back before this thread was in the queue woke none: look once more before sleeping.
        while True:
            item = self._leave_with_idle(waiter)
            if item is not None:
                return item
            if request is not None and request.cancelled:
                return self._leave(waiter)
            try:
                item = waiter.mail.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
            except Empty:
                return self._leave(waiter)
            if item is not None:
                return item

    def _leave_with_idle(self, waiter: _Waiter[T]) -> T | None:
        """Take an idle item and leave the queue; None if there is none, or ``waiter`` has an item in its mail."""
        with self._lock:
            waiter.called = False
            if waiter not in self._waiters:
                return None
            try:
                item = self._idle.pop()
            except IndexError:
                return None
            self._waiters.remove(waiter)
            self._call_first()
            return item

    def _leave(self, waiter: _Waiter[T]) -> T | None:
        """Give up, unless an item has just been handed over."""
        with self._lock:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                self._call_first()  # The call that it did not hear is for the next one.
                return None
        while (item := waiter.mail.get()) is None:
            pass
        return item

    def _call_first(self) -> None:
        """Wake the first in the queue, as there may be something for it, or give it to it. Holds the lock."""
        while self._idle and self._waiters:
            first = self._waiters[0]
            if time.monotonic_ns() - first.since_ns < _PATIENCE_NS:
                if not first.called:
                    first.called = True
                    first.mail.put(None)
                return
            try:
                item = self._idle.pop()
            except IndexError:  # Another thread took it, without the lock; giving it back calls again.
                return
            self._waiters.popleft()
            first.mail.put(item)


def _close_elsewhere(close: Callable[[], None]) -> None:
    """Not on the thread of a request, which would wait for it."""

    def run() -> None:
        try:
            close()
        except Exception:
            logger.exception("closing an instance failed")

    try:
        threading.Thread(target=run, name="repoagent-instance-end", daemon=True).start()
    except RuntimeError:  # The machine has no thread left.
        run()
