"""A thread that acts when a time has come or a request is cancelled, whatever the workers are busy with."""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from repoagent.serving.scheduling.clock import Clock
from repoagent.serving.scheduling.steps import Refusal

__all__ = ["Watcher"]

_PATIENCE_SECONDS: Final = 1.0


class Watcher:
    """Calls ``act`` with the time when that of ``due`` has come, and refuses the requests that it returns.

    So it does with ``sweep`` when a request was cancelled; one call for all that were cancelled meanwhile.

    ``due``, ``act`` and ``sweep`` are called with ``lock`` held, ``refuse`` without. After ``act``, ``due`` must be
    later, or None.
    """

    def __init__(
        self,
        name: str,
        lock: threading.Lock,
        clock: Clock,
        due: Callable[[], int | None],
        act: Callable[[int], Sequence[Refusal]],
        sweep: Callable[[int], Sequence[Refusal]],
        refuse: Callable[[Refusal], None],
    ) -> None:
        self._name = name
        self._changed = threading.Condition(lock)
        self._clock = clock
        self._due = due
        self._act = act
        self._sweep = sweep
        self._refuse = refuse
        self._armed_ns: int | None = None
        self._cancelled = False
        self._thread: threading.Thread | None = None
        self._stopped = False

    def notice(self) -> None:
        """What is due may have changed. Call it with the lock held."""
        due = self._due()
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
            self._refuse(refusal)

    def _wait(self) -> Sequence[Refusal]:
        with self._changed:
            while not self._stopped:
                now = self._clock.now_ns()
                if self._cancelled:
                    self._cancelled = False
                    return self._sweep(now)
                self._armed_ns = self._due()
                if self._armed_ns is not None and self._armed_ns <= now:
                    return self._act(now)
                self._clock.wait(self._changed, self._armed_ns)
        return ()

    def stop(self) -> None:
        """End the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_PATIENCE_SECONDS)
