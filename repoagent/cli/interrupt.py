"""Signals during a load, and while a command has its result."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_MESSAGE: Final = b"interrupted: the running step may end in good order; another Ctrl-C stops it at once\n"
_STOP: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
_FORWARDED: Final = _STOP | {signal.SIGUSR1, signal.SIGUSR2}


def interrupt_flag() -> threading.Event:
    """Set by the first Ctrl-C, so that the load is given up in good order; a second one interrupts whatever runs."""
    flag = threading.Event()

    def interrupt(*_: object) -> None:
        flag.set()
        # Before the message, which invites the second Ctrl-C: it may come at once.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if sys.__stderr__ is not None:  # else the descriptor may be that of a file which the load writes
            with suppress(OSError):  # an error here would be one of whatever runs
                os.write(sys.__stderr__.fileno(), _MESSAGE)

    signal.signal(signal.SIGINT, interrupt)
    return flag


class StopSignals:
    """Signals to stop give a load up in good order, and a second Ctrl-C at once; later, all go on to a process."""

    def __init__(self) -> None:
        self.number = 0
        """The first that came before :meth:`forward`; 0 while none has."""
        self._raises = True
        self._send: Callable[[int], None] | None = None
        self._kept: frozenset[signal.Signals] = frozenset()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else, where our parent ignores it, no child has a status
        for number in _FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
                signal.signal(number, self._take)

    def is_set(self) -> bool:
        """Whether the load is to be given up."""
        return self.number != 0

    def hold(self) -> None:
        """From now on a second Ctrl-C is only noted, too: what is about to start must not be left alone."""
        self._raises = False

    def forward(self, send: Callable[[int], None], *, but: frozenset[signal.Signals] = frozenset()) -> None:
        """Call ``send`` with every signal from now on but those in ``but``; one that came before becomes SIGTERM."""
        self._send, self._kept = send, but
        if self.number:
            send(signal.SIGTERM)

    def _take(self, number: int, *_: object) -> None:
        if self._send is None:
            if self._raises and self.number and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.number = self.number or (number if number in _STOP else 0)
        elif number not in self._kept:
            self._send(number)
