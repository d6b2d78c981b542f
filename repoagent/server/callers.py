"""What the threads that send requests do next: wait for the answer, or ask for more meanwhile."""

import itertools
import threading
from typing import Final

__all__ = ["CALLER", "Caller"]

_SERIALS: Final = itertools.count(1)
_PATIENT: Final = 2


class _Habits:
    """What is known of one thread."""

    __slots__ = ("in_turn", "open", "patient")

    def __init__(self) -> None:
        self.open = 0
        """The number of the request whose answer it has not taken yet."""
        self.in_turn = 0
        self.patient = False


class Caller(threading.local):
    """The current thread. It is *patient* if it took its last answers, one by one, before it asked for the next.

    A patient thread executes the model itself: it would only sleep meanwhile. A thread that sends several requests
    before it looks for answers wants them executed at once, or in one batch. So does one whose answers go to other
    threads.
    """

    def __init__(self) -> None:
        self._habits = _Habits()  # To look for the thread's own costs more than anything else here.

    @property
    def patient(self) -> bool:
        """Whether it can be expected to wait for what it has just asked for."""
        return self._habits.patient

    def ask(self) -> int:
        """The thread sends a request; its number is for :meth:`hear`."""
        habits = self._habits
        if habits.open:
            habits.in_turn = 0
            habits.patient = False
        habits.open = serial = next(_SERIALS)
        return serial

    def hear(self, serial: int) -> None:
        """The thread took the final answer to that request, which may be another thread's."""
        habits = self._habits
        if serial == habits.open:
            habits.open = 0
            habits.in_turn += 1
            habits.patient = habits.in_turn >= _PATIENT


CALLER: Final = Caller()
"""That of whichever thread looks at it."""
