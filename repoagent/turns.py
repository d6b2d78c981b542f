"""Which of several models computes: one after the other, each on all cores, for equal shares of the time.

Two steps at once on the same cores take longer than one after the other: threads of one wait for each other while
threads of the other have their cores. So a step waits until no other one runs.
"""

import threading
import time
from collections.abc import Callable
from operator import attrgetter
from typing import Final

QUANTUM: Final = 0.002
"""Seconds for which a seat keeps its turn, over several short steps: to hand it on takes a small part of that."""
PATIENCE: Final = 2.0
"""Seconds for which others wait for one step."""


class Seat:
    """The place of one executor, or of an instance of another model, that one thread at a time uses: ``take`` before a
    step, ``rest`` after it, and ``leave`` when there is nothing to compute. As a context it is all three."""

    def __init__(self, turns: "Turns") -> None:
        self._turns = turns
        self.called = threading.Semaphore(0)
        self.used = 0.0
        """Seconds of turns so far; no less than others had when it came."""
        self.since = 0.0
        """When it got the turn."""
        self.generates = False
        """Whether requests of it wait for their next token, and not only for their first."""

    @property
    def contended(self) -> bool:
        """Whether others have something to compute, too."""
        return self._turns.contended

    @property
    def awaited(self) -> bool:
        """Whether others generate, so that what this seat computes holds up their next tokens."""
        return self._turns.contended and self._turns.others_generate(self)

    def take(self, *, generates: bool = False) -> None:
        """Wait until no other seat computes, or one has computed for too long."""
        self.generates = generates
        if self._turns.enter(self):
            while not self.called.acquire(timeout=self._turns.patience):
                self._turns.pass_over()

    def rest(self) -> None:
        """The step is over. The next seat has its turn, unless this one has had less than its share."""
        self._turns.pass_on(self)

    def leave(self) -> None:
        """Nothing is to be computed until the next ``take``."""
        self._turns.leave(self)

    def __enter__(self) -> None:
        self.take()

    def __exit__(self, *_: object) -> None:
        self.rest()
        self.leave()


class Turns:
    """What models of one process share; set it as ``ExecutorConfig.turns`` of each executor.

    The seat that has computed least goes next. One that comes back begins where the others are: it saves up nothing.
    A step of more than ``patience`` seconds, which may never end, loses its turn, and goes on beside the others.
    A seat keeps its turn for ``quantum`` seconds at least, while it has steps.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, patience: float = PATIENCE, quantum: float = QUANTUM
    ) -> None:
        self._clock = clock
        self.patience = patience
        self._quantum = quantum
        self._lock = threading.Lock()
        self._holder: Seat | None = None
        self._began = 0.0
        """From when on the holder's time counts."""
        self._waiting: list[Seat] = []
        self._present: set[Seat] = set()
        self._passed = 0.0
        """What the seat had used that got the last turn."""

    def seat(self) -> Seat:
        """A place for one more executor."""
        return Seat(self)

    @property
    def contended(self) -> bool:
        """Whether several seats have something to compute."""
        return len(self._present) > 1

    def others_generate(self, seat: Seat) -> bool:
        """Whether a seat other than ``seat`` generates."""
        with self._lock:
            return any(other.generates for other in self._present if other is not seat)

    def enter(self, seat: Seat) -> bool:
        """Give ``seat`` the turn if it is free; True if the seat must wait until it is called."""
        with self._lock:
            if seat not in self._present:
                self._present.add(seat)
                seat.used = max(seat.used, self._passed)
            if self._holder is None:
                self._give(seat)
            elif self._holder is not seat:
                self._waiting.append(seat)
                return True
        return False

    def pass_on(self, seat: Seat) -> None:
        """The step of the holder is over."""
        with self._lock:
            if self._holder is not seat:
                return
            now = self._charge(seat)
            if not self._waiting:
                self._holder = None
            elif now - seat.since >= self._quantum and self._next().used <= seat.used:
                self._call_next()

    def pass_over(self) -> None:
        """Call the next seat if the holder has computed for too long."""
        with self._lock:
            late = self._clock() - self._began >= self.patience
            if self._waiting and self._holder is not None and late:
                self._charge(self._holder)
                self._call_next()

    def leave(self, seat: Seat) -> None:
        """The seat has nothing to compute, whether it holds the turn or not."""
        with self._lock:
            self._present.discard(seat)
            if self._holder is seat:
                self._holder = None
                if self._waiting:
                    self._call_next()

    def _charge(self, seat: Seat) -> float:
        """Count what the holder has computed since the last time; returns the moment."""
        now = self._clock()
        seat.used += now - self._began
        self._began = now
        return now

    def _next(self) -> Seat:
        return min(self._waiting, key=attrgetter("used"))

    def _call_next(self) -> None:
        seat = self._next()
        self._waiting.remove(seat)
        self._give(seat)
        seat.called.release()

    def _give(self, seat: Seat) -> None:
        self._holder = seat
        self._began = seat.since = self._clock()
        self._passed = max(self._passed, seat.used)


PROCESS: Final = Turns()
"""Of all models of this process that have the cores to themselves, one at a time."""
