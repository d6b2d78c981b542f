"""A thread that acts when a time has come or a request is cancelled, whatever the workers are busy with."""

import threading
from collections.abc import Sequence
from typing import Final, Protocol

from repoagent.serving.scheduling.steps import Clock, Refusal, Refuser

_PATIENCE_SECONDS: Final = 1.0


class Watched(Protocol):
    """Requests that wait. All is called with the scheduler's lock held."""

    @property
    def deadline_ns(self) -> int | None:
        """When :meth:`expire` is to be called next; None: not by itself."""

    def expire(self, now_ns: int) -> Sequence[Refusal]:
        """Take out what has waited too long by now; :attr:`deadline_ns` is later then, or None."""

    def sweep(self) -> Sequence[Refusal]:
        """Take out what was cancelled."""


class Watcher:
    """Has ``watched`` give out requests that waited too long or were cancelled, and ``refuser`` answer them.

    One sweep is enough for all that were cancelled meanwhile. ``lock`` is that of the scheduler.
    """

    def __init__(
        self,
        name: str,
        lock: threading.Lock,
        clock: Clock,
        watched: Watched,
        refuser: Refuser,
    ) -> None:
        self._name = name
        self._changed = threading.Condition(lock)
        self._clock = clock
        self._watched = watched
        self._refuser = refuser
        self._armed_ns: int | None = None
        self._cancelled = False
        self._thread: threading.Thread | None = None
        self._stopped = False

    def notice(self) -> None:
        """What is due may have changed. Call it with the lock held."""
        due = self._watched.deadline_ns
        if due is None or self._stopped:
            return
        if self._thread is None:
            self._start()
        elif self._armed_ns is None or due < self._armed_ns:
            self._changed.notify()

    def on_cancel(self) -> None:
        """For :attr:`InferRequest.on_cancel`. Call it without the lock."""
        with self._changed:
            if self._stopped:
                return
            self._cancelled = True
            if self._thread is None:
                self._start()
            else:
                self._changed.notify()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._watch, name=self._name, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stopped:
            self._refuse_all(self._wait())

    def _refuse_all(self, refusals: Sequence[Refusal]) -> None:
        # A function of its own: while the thread waits, it keeps no refused request in memory.
        for refusal in refusals:
            self._refuser.answer(refusal)

    def _wait(self) -> Sequence[Refusal]:
        with self._changed:
            while not self._stopped:
                now = self._clock.now_ns()
                if self._cancelled:
                    self._cancelled = False
                    return self._watched.sweep()
                self._armed_ns = self._watched.deadline_ns
                if self._armed_ns is not None and self._armed_ns <= now:
                    return self._watched.expire(now)
                self._clock.wait(self._changed, self._armed_ns)
        return ()

    def stop(self) -> None:
        """End the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_PATIENCE_SECONDS)
