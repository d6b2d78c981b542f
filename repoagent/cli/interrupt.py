"""Ctrl-C during a load."""

import os
import signal
import threading

__all__ = ["interrupt_flag"]


def interrupt_flag() -> threading.Event:
    """Set by the first Ctrl-C, so that the load is given up in good order; a second one interrupts whatever runs."""
    flag = threading.Event()

    def interrupt(*_: object) -> None:
        flag.set()
        # Before the message, which invites the second Ctrl-C: it may come at once.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.write(2, b"interrupted: the running step may end in good order; another Ctrl-C stops it at once\n")

    signal.signal(signal.SIGINT, interrupt)
    return flag
