"""Ctrl-C during a load."""

import signal
import threading

__all__ = ["interrupt_flag"]


def interrupt_flag() -> threading.Event:
    """Set by the first Ctrl-C, so that the load is given up in good order; a second one interrupts whatever runs."""
    flag = threading.Event()

    def interrupt(*_: object) -> None:
        flag.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, interrupt)
    return flag
