"""What the threads that send requests do next: wait for the answer, or ask for more meanwhile."""

import itertools
import threading
from typing import Final

__all__ = ["CALLER", "Caller"]

_SERIALS: Final = itertools.count(1)
_PATIENT: Final = 2


class Caller(threading.local):
    """The current thread. It is *patient* if it took its last answers, one by one, before it asked for the next.

    For a patient thread a model can be executed where it is: it would only sleep meanwhile. One that sends several
    requests and then looks for the answers wants them to be executed at once, or in one batch; so does one whose
    answers go to other threads.
    """

    def __init__(self) -> None:
        self._open = 0
        self._in_turn = 0
        self.patient = False
        """Whether it can be expected to wait for what it has just asked for."""

    def ask(self) -> int:
        """The thread sends a request; its number is for :meth:`hear`."""
        if self._open:
            self._in_turn = 0
            self.patient = False
        self._open = serial = next(_SERIALS)
        return serial

    def hear(self, serial: int) -> None:
        """The thread took the final answer to that request, which may be another thread's."""
        if serial == self._open:
            self._open = 0
            self._in_turn += 1
            self.patient = self._in_turn >= _PATIENT


CALLER: Final = Caller()
"""That of whichever thread looks at it."""
