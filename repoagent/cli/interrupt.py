"""Ctrl-C during a load."""

import os
import signal
import sys
import threading
from contextlib import suppress
from typing import Final

__all__ = ["interrupt_flag"]

_MESSAGE: Final = b"interrupted: the running step may end in good order; another Ctrl-C stops it at once\n"


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
